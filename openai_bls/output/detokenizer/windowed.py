"""Detokenizer for any other tokenizer: decodes a short window of ids per push."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai_bls.output.detokenizer.base import REPLACEMENT, Detokenizer, SharedFactory, continuation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from openai_bls.output.detokenizer.base import Vocabulary

# Ids of context decoded before the new ones.
_CONTEXT = 8
# Most ids held while the text ends in U+FFFD; bounds the cost of a sequence that is not text.
_MAX_HELD = 64


class WindowedFactory(SharedFactory[frozenset[int]]):
    """Makes detokenizers that call the tokenizer's own decoder: WordPiece, BPE with `</w>`, CTC...

    The invariant holds for local decoders: the text of an id depends on at most eight ids before it and on whether it
    is the first, and the text of a prefix of the ids is a prefix of the text, U+FFFD at its end aside. `WordPiece`,
    `BPEDecoder`, `CTC` and no decoder at all are local; a decoder that strips the end of the text (`Strip` with `stop`)
    is not, nor is a run of more than 64 ids of invalid bytes. With a prompt the text is `decode(prompt + ids)` less
    `decode(prompt)`.

    `decode_chunk` is exact for the same decoders, if the context has an id that is not skipped.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        super().__init__(frozenset(vocabulary.tokens) - vocabulary.special_ids, vocabulary.special)

    def _extended(self, special: dict[int, str]) -> frozenset[int]:
        return self._plain.union(special)

    def _start(self, shown: frozenset[int], prompt_token_ids: Sequence[int]) -> Detokenizer:
        return WindowedDetokenizer(self._tokenizer, shown, prompt_token_ids)

    def decode_chunk(
        self, context: Sequence[int], new: Sequence[int], final: bool, skip_special_tokens: bool = True
    ) -> str:
        """The text that one chunk of a stream adds."""
        kept = self._shown(skip_special_tokens)
        before = [token_id for token_id in context if token_id in kept]
        after = before + [token_id for token_id in new if token_id in kept]
        text = self._tokenizer.decode(after, skip_special_tokens=False)
        told = self._tokenizer.decode(before, skip_special_tokens=False).rstrip(REPLACEMENT)
        if not final:
            text = text.rstrip(REPLACEMENT)
        return continuation(told, text)

    def token_bytes(self, token_id: int) -> bytes:
        """The text of the token alone."""
        if token_id not in self._all:
            return b""
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text.encode()


class WindowedDetokenizer(Detokenizer):
    """Holds back ids while the text that they add ends in U+FFFD. Costs some microseconds per id."""

    __slots__ = ("_context", "_held", "_kept", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, kept: frozenset[int], prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._kept = kept
        self._held: list[int] = []
        context: list[int] = []
        for token_id in reversed(prompt):
            if len(context) == _CONTEXT:
                break
            if token_id in kept:
                context.append(token_id)
        self._context = context[::-1]

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that they add."""
        kept = self._kept
        new = [token_id for token_id in token_ids if token_id in kept]
        if not new:
            return ""
        self._held += new
        text = self._added()
        if text.endswith(REPLACEMENT) and len(self._held) < _MAX_HELD:
            return ""
        self._context = (self._context + self._held)[-_CONTEXT:]
        self._held = []
        return text

    def finish(self) -> str:
        """Return the text of the held ids."""
        text = self._added() if self._held else ""
        self._held = []
        return text

    def _added(self) -> str:
        decode = self._tokenizer.decode
        before = decode(self._context, skip_special_tokens=False) if self._context else ""
        return continuation(before, decode(self._context + self._held, skip_special_tokens=False))
