"""Detokenizer for byte-level BPE (GPT-2, Qwen, Llama 3): token ids to text, exact at every step.

A token is a string of stand-in characters, one per byte of text; the text of a sequence is its bytes read as UTF-8.
Nearly every token is whole UTF-8 by itself and is looked up as `str`; bytes are handled around split characters only.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from openai_bls.output.detokenizer.base import Detokenizer, SharedFactory, Vocabulary


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's stand-in characters: a printable Latin-1 byte is itself, the other 68 follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update((chr(0x100 + place), byte) for place, byte in enumerate(others))
    return alphabet


BYTE_OF = _byte_alphabet()
"""Stand-in character → byte."""


def token_bytes(token: str) -> bytes:
    """A token's bytes by the `ByteLevel` decoder, which takes a token with any character outside the alphabet as text.

    Most added tokens are such; one like "café", all of it inside the alphabet, decodes to an invalid byte.
    """
    try:
        return bytes([BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


class _Table(NamedTuple):
    """Look-up tables by token id; skipped and unknown ids are in neither."""

    whole: dict[int, str]
    """Tokens that are valid UTF-8."""
    parts: dict[int, bytes]
    """Tokens with partial characters or invalid bytes, and special tokens that are kept."""

    def bytes_of(self, token_id: int) -> bytes:
        part = self.parts.get(token_id)
        return self.whole.get(token_id, "").encode() if part is None else part


def _table(tokens: Iterable[tuple[int, str]]) -> _Table:
    whole: dict[int, str] = {}
    parts: dict[int, bytes] = {}
    for token_id, token in tokens:
        raw = token_bytes(token)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            parts[token_id] = raw
        else:
            # Most tokens are their own text: one string for both.
            whole[token_id] = token if text == token else text
    return _Table(whole, parts)


class ByteLevelFactory(SharedFactory[_Table]):
    """Makes detokenizers for byte-level tokenizers.

    The invariant is exact, and the text is `decode(ids)` whatever the prompt.

    `decode_chunk` is exact if `context` has all ids since the stream's beginning or at least three bytes of text that
    is not skipped, since pending bytes depend on the last three only. Where skipped or unknown ids fill the context
    (with 16: from 14 on, within one character), the character becomes U+FFFD.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(_table(vocabulary.kept(skip_special_tokens=True)), vocabulary.special)

    def _extended(self, special: dict[int, str]) -> _Table:
        """The tables share `whole`, the large part."""
        added = {token_id: token_bytes(token) for token_id, token in special.items()}
        return _Table(self._plain.whole, self._plain.parts | added)

    def _start(self, shown: _Table, prompt_token_ids: Sequence[int]) -> Detokenizer:
        return ByteLevelDetokenizer(shown)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of the token."""
        return self._all.bytes_of(token_id)


class ByteLevelDetokenizer(Detokenizer):
    """Holds back at most three bytes of a partial character."""

    __slots__ = ("_pending", "_table", "_text_of")

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._text_of = table.whole.get
        self._pending = b""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the whole characters."""
        if not self._pending:
            if len(token_ids) == 1:
                text = self._text_of(token_ids[0])
                if text is not None:
                    return text
            else:
                try:
                    return "".join(map(self._text_of, token_ids))  # type: ignore[arg-type]
                except TypeError:
                    pass  # One of them is not whole UTF-8.
        raw = self._pending + b"".join(map(self._table.bytes_of, token_ids))
        # As in Rust's from_utf8_lossy: one U+FFFD per maximal subpart of an ill-formed sequence.
        text, used = utf_8_decode(raw, "replace", False)
        self._pending = raw[used:]
        return text

    def finish(self) -> str:
        """Return a U+FFFD if the bytes end within a character."""
        text = self._pending.decode(errors="replace")
        self._pending = b""
        return text
