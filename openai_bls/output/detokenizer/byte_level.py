"""Detokenization for byte-level BPE: GPT-2, Qwen, Llama 3 and their kin.

Such a token is a string of stand-in characters, one for each byte of text, so the text of a
sequence is simply its bytes, put together and read as UTF-8. Nearly every token is whole UTF-8 by
itself; those are looked up as `str`, and bytes are only handled around split characters.
"""

from __future__ import annotations

from codecs import utf_8_decode
from typing import TYPE_CHECKING, NamedTuple

from openai_bls.output.detokenizer.base import Detokenizer, SharedFactory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openai_bls.output.detokenizer.base import Vocabulary


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins: a printable Latin-1 byte is itself, the other 68 follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update((chr(0x100 + place), byte) for place, byte in enumerate(others))
    return alphabet


_BYTE_OF = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    """A token's bytes, as the `ByteLevel` decoder has them.

    A single character outside the alphabet makes the decoder take the whole token as plain text.
    That is how most added tokens get through; one like "café", all of it inside the alphabet, does
    not, and decodes to an invalid byte.
    """
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


class _Table(NamedTuple):
    """The vocabulary split in two; skipped ids and ids outside it are in neither part."""

    whole: dict[int, str]
    """Tokens that are UTF-8 by themselves."""
    parts: dict[int, bytes]
    """Tokens that hold a part of a character, or bytes that are never text; special tokens that are kept."""

    def bytes_of(self, token_id: int) -> bytes:
        part = self.parts.get(token_id)
        return self.whole.get(token_id, "").encode() if part is None else part


def _table(tokens: Iterable[tuple[int, str]]) -> _Table:
    whole: dict[int, str] = {}
    parts: dict[int, bytes] = {}
    for token_id, token in tokens:
        raw = _bytes_of(token)
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

    The law is exact, and about the sequence alone: the text is `decode(ids)` whatever the prompt,
    since a byte's meaning does not depend on the words before it.

    `decode_chunk` is exact too, if `context` holds all ids since the stream's beginning or at
    least three bytes of text that is not skipped. UTF-8 synchronises itself: what is pending
    depends on the last three bytes. It fails only where a run of skipped or unknown ids fills the
    context (with 16: from 14 on, in the middle of one character); the character is then lost to
    U+FFFD.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(_table(vocabulary.kept(skip_special_tokens=True)), vocabulary.special)

    def _extended(self, special: dict[int, str]) -> _Table:
        """The plain table's large part serves for all."""
        added = {token_id: _bytes_of(token) for token_id, token in special.items()}
        return _Table(self._plain.whole, self._plain.parts | added)

    def new(
        self,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
        *,
        keep_special: frozenset[str] = frozenset(),
    ) -> Detokenizer:
        """Start a sequence; the prompt is of no consequence."""
        return ByteLevelDetokenizer(self._shown(skip_special_tokens, keep_special))

    def decode_chunk(
        self,
        context: Sequence[int],
        new: Sequence[int],
        final: bool,
        skip_special_tokens: bool = True,
    ) -> str:
        """The text that one chunk of a stream adds."""
        detokenizer = self.new(skip_special_tokens)
        detokenizer.push(context)
        text = detokenizer.push(new)
        return text + detokenizer.finish() if final else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for."""
        return self._all.bytes_of(token_id)


class ByteLevelDetokenizer(Detokenizer):
    """Holds back at most three bytes: the beginning of a character."""

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
                    pass  # One of them is not a whole text.
        raw = self._pending + b"".join(map(self._table.bytes_of, token_ids))
        # Both this decoder and Rust's from_utf8_lossy put one U+FFFD for each maximal subpart of
        # an ill-formed sequence, the Unicode standard's recommendation.
        text, used = utf_8_decode(raw, "replace", False)
        self._pending = raw[used:]
        return text

    def finish(self) -> str:
        """Return a U+FFFD if the bytes end within a character."""
        text = self._pending.decode(errors="replace")
        self._pending = b""
        return text
