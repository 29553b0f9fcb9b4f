"""What every kind of detokenizer offers, and the vocabulary they are built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

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
    """Makes detokenizers for one tokenizer. Threads may share it: once built nothing changes but its caches, which any
    thread may fill; two that do so at once put down the same."""

    @abstractmethod
    def new(
        self,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
        *,
        keep_special: frozenset[str] = frozenset(),
    ) -> Detokenizer:
        """Start a sequence.

        Args:
            skip_special_tokens: leave special tokens out of the text.
            prompt_token_ids: what stands before the sequence. The prompt's own text is not
                returned; it decides, for sentencepiece-like tokenizers, whether the space that
                begins the first word is text (it is, unless the sequence begins the whole).
            keep_special: contents of special tokens that stay in the text nevertheless. The law
                then holds for the ids without the other special ones: the text is that of
                `tokenizer.decode(those, skip_special_tokens=False)`.
        """

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of a whole sequence of ids."""
        detokenizer = self.new(skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.finish()

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

    def token_text(self, token_id: int) -> str:
        """One token as OpenAI's log-probabilities name it: its text, a leading space included.

        One that is a part of a character is `bytes:` and its bytes, as in `bytes:\\xe4\\xbd`.
        """
        raw = self.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


_Shown = TypeVar("_Shown")


class SharedFactory(DetokenizerFactory, Generic[_Shown]):
    """A factory whose detokenizers share what they look up, for each choice of special tokens that show up.

    Args:
        plain: what they look up if special tokens are skipped.
        special: the special tokens by id.
    """

    def __init__(self, plain: _Shown, special: dict[int, str]) -> None:
        self._plain = plain
        self._special = special
        self._choices: dict[frozenset[str], _Shown] = {}

    @abstractmethod
    def _extended(self, special: dict[int, str]) -> _Shown:
        """`plain`, and these special tokens, too."""

    def _shown(self, skip_special_tokens: bool, keep_special: frozenset[str] = frozenset()) -> _Shown:
        if not skip_special_tokens:
            return self._all
        return self._with(keep_special) if keep_special else self._plain

    @cached_property
    def _all(self) -> _Shown:
        return self._with(frozenset(self._special.values()))

    def _with(self, keep_special: frozenset[str]) -> _Shown:
        shown = self._choices.get(keep_special)
        if shown is None:
            kept = {token_id: token for token_id, token in self._special.items() if token in keep_special}
            shown = self._extended(kept) if kept else self._plain
            self._choices[keep_special] = shown
        return shown


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

    @property
    def special(self) -> dict[int, str]:
        """The special tokens by id."""
        return {token_id: self.tokens[token_id] for token_id in self.special_ids}

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
