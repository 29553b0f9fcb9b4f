"""What every kind of detokenizer offers, and the vocabulary they are built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"


def continuation(before: str, whole: str) -> str:
    """What `whole` adds to `before`: all that follows the beginning which they share."""
    if whole.startswith(before):
        return whole[len(before) :]
    shared = next(i for i, char in enumerate(before) if not whole.startswith(char, i))
    return whole[shared:]


class Detokenizer(ABC):
    """The text of one sequence of token ids, piece by piece. Not thread-safe; one per sequence.

    The law, for every sequence of ids and every way to cut it into pushes::

        "".join(push(chunk) for chunk in chunks) + finish() == tokenizer.decode(ids)

    Each kind's factory says what `decode` means where a prompt precedes the ids.
    """

    __slots__ = ()

    @abstractmethod
    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that no later id can change, often empty.

        Ids outside the vocabulary add nothing, as in `Tokenizer.decode`.
        """

    @abstractmethod
    def finish(self) -> str:
        """Return what was still held, incomplete bytes as U+FFFD. No push may follow."""


class DetokenizerFactory(ABC):
    """Makes detokenizers for one tokenizer; read-only once built, so threads may share it."""

    @abstractmethod
    def new(self, skip_special_tokens: bool = True, prompt_token_ids: Sequence[int] = ()) -> Detokenizer:
        """Start a sequence.

        Args:
            skip_special_tokens: leave special tokens out of the text.
            prompt_token_ids: what stands before the sequence. The prompt's own text is not
                returned; it decides, for sentencepiece-like tokenizers, whether the space that
                begins the first word is text (it is, unless the sequence begins the whole).
        """

    @abstractmethod
    def decode_chunk(
        self,
        context: Sequence[int],
        new: Sequence[int],
        final: bool,
        skip_special_tokens: bool = True,
    ) -> str:
        """The text that one chunk of a stream adds, with no state kept between the chunks.

        Args:
            context: the ids generated just before `new`, at least 16 of them or all there are.
            new: the chunk's ids.
            final: no chunk follows.
            skip_special_tokens: leave special tokens out of the text.

        Returns:
            Text such that the chunks' texts, joined, are the whole decode. How exactly that holds
            is said by each kind of tokenizer.
        """

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token, special or not; a part of a character stays just that part.

        Empty for an id outside the vocabulary.
        """


class Vocabulary:
    """Every token of a tokenizer, and which are special, as `Tokenizer.decode` sees them.

    Args:
        tokens: the tokens by id.
        special: what special tokens hold.
    """

    def __init__(self, tokens: dict[int, str], special: set[str]) -> None:
        self.tokens = tokens
        # The decoder goes by a token's content: a second id with a special token's content is
        # skipped as well.
        self.special_ids: frozenset[int] = frozenset(token_id for token_id, token in tokens.items() if token in special)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of a tokenizer."""
        added = tokenizer.get_added_tokens_decoder()
        last = max(
            tokenizer.get_vocab_size() - 1,
            max(tokenizer.get_vocab().values(), default=-1),
            max(added, default=-1),
        )
        candidates = ((token_id, tokenizer.id_to_token(token_id)) for token_id in range(last + 1))
        tokens = {token_id: token for token_id, token in candidates if token is not None}
        return cls(tokens, {token.content for token in added.values() if token.special})

    def kept(self, skip_special_tokens: bool) -> Iterable[tuple[int, str]]:
        """The (id, token) pairs that show up in the text."""
        if not skip_special_tokens:
            return self.tokens.items()
        return (item for item in self.tokens.items() if item[0] not in self.special_ids)
