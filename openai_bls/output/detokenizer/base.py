"""Detokenizer interface, its factories, and the vocabulary they are built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from openai_bls.output.detokenizer.special_tokens import SpecialTokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"


def continuation(before: str, whole: str) -> str:
    """The part of `whole` after the prefix that it shares with `before`."""
    if whole.startswith(before):
        return whole[len(before) :]
    shared = next(i for i, char in enumerate(before) if not whole.startswith(char, i))
    return whole[shared:]


class Detokenizer(ABC):
    """Incremental text of one sequence of token ids. Not thread-safe; one per sequence.

    The invariant, for every sequence of ids and every way to cut it into pushes::

        "".join(push(chunk) for chunk in chunks) + finish() == tokenizer.decode(ids)

    Each factory defines `decode` after a prompt.
    """

    __slots__ = ()

    @abstractmethod
    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that no later id can change, often empty.

        Ids outside the vocabulary add nothing, as in `Tokenizer.decode`.
        """

    @abstractmethod
    def finish(self) -> str:
        """Return the text still held, incomplete bytes as U+FFFD. No push may follow."""


class DetokenizerFactory(ABC):
    """Makes detokenizers for one tokenizer. Thread-safe: only caches change, and concurrent writers write the same."""

    @property
    @abstractmethod
    def special(self) -> SpecialTokens:
        """The tokenizer's special tokens."""

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
            skip_special_tokens: whether special tokens are left out of the text.
            prompt_token_ids: ids before the sequence. Their text is not returned; for sentencepiece-like tokenizers
                they decide whether the space that begins the first word is text (it is, unless there is no prompt).
            keep_special: contents of special tokens that stay in the text. The invariant then holds for the ids without
                the other special ones: the text is `tokenizer.decode(those, skip_special_tokens=False)`.
        """

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of a whole sequence of ids."""
        detokenizer = self.new(skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.finish()

    @abstractmethod
    def decode_chunk(
        self, context: Sequence[int], new: Sequence[int], final: bool, skip_special_tokens: bool = True
    ) -> str:
        """The text that one chunk of a stream adds, without state between the chunks.

        Args:
            context: the ids generated just before `new`, at least 16 or all there are.
            new: the chunk's ids.
            final: whether this is the last chunk.
            skip_special_tokens: whether special tokens are left out of the text.

        Returns:
            Text such that the chunks' texts, joined, are the whole decode, within the limits that each factory states.
        """

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token, special or not, also of a partial character; empty outside the vocabulary."""

    def token_text(self, token_id: int) -> str:
        """One token as OpenAI's log-probabilities name it: its text with a leading space, or, for a partial character,
        `bytes:` and its bytes, as in `bytes:\\xe4\\xbd`."""
        raw = self.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


_Shown = TypeVar("_Shown")


class SharedFactory(DetokenizerFactory, Generic[_Shown]):
    """A factory whose detokenizers share one look-up table per choice of special tokens that are kept.

    Args:
        plain: the table without special tokens.
        special: the special tokens by id.
    """

    def __init__(self, plain: _Shown, special: dict[int, str]) -> None:
        self._plain = plain
        self._special = special
        self._choices: dict[frozenset[str], _Shown] = {}

    @cached_property
    def special(self) -> SpecialTokens:
        """The tokenizer's special tokens."""
        return SpecialTokens(self._special)

    @abstractmethod
    def _extended(self, special: dict[int, str]) -> _Shown:
        """The plain table with these special tokens."""

    @abstractmethod
    def _start(self, shown: _Shown, prompt_token_ids: Sequence[int]) -> Detokenizer:
        """A detokenizer over one of the tables, after a prompt."""

    def _start_chunk(self, shown: _Shown) -> Detokenizer:
        """A detokenizer for `decode_chunk`."""
        return self._start(shown, ())

    def new(
        self,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
        *,
        keep_special: frozenset[str] = frozenset(),
    ) -> Detokenizer:
        """Start a sequence."""
        return self._start(self._shown(skip_special_tokens, keep_special), prompt_token_ids)

    def decode_chunk(
        self, context: Sequence[int], new: Sequence[int], final: bool, skip_special_tokens: bool = True
    ) -> str:
        """The text that one chunk of a stream adds."""
        detokenizer = self._start_chunk(self._shown(skip_special_tokens))
        detokenizer.push(context)
        text = detokenizer.push(new)
        return text + detokenizer.finish() if final else text

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
    """The tokens of a tokenizer and which of them are special, as `Tokenizer.decode` sees them.

    Args:
        tokens: the tokens by id.
        special: contents of special tokens.
    """

    def __init__(self, tokens: dict[int, str], special: set[str]) -> None:
        self.tokens = tokens
        # The decoder compares contents: a second id with a special token's content is skipped as well.
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
            tokenizer.get_vocab_size() - 1, max(tokenizer.get_vocab().values(), default=-1), max(added, default=-1)
        )
        candidates = ((token_id, tokenizer.id_to_token(token_id)) for token_id in range(last + 1))
        tokens = {token_id: token for token_id, token in candidates if token is not None}
        return cls(tokens, {token.content for token in added.values() if token.special})

    def kept(self, skip_special_tokens: bool) -> Iterable[tuple[int, str]]:
        """The (id, token) pairs that are part of the text."""
        if not skip_special_tokens:
            return self.tokens.items()
        return (item for item in self.tokens.items() if item[0] not in self.special_ids)
