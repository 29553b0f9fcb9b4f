"""Detokenizer for sentencepiece-like tokenizers with byte fallback: Llama 2, Mistral 7B, Gemma, T5, XLM-R.

Tokens are text with `▁` for a space; a character outside the vocabulary is one token per byte, such as `<0xE4>`.

- A run of byte tokens that is valid UTF-8 as a whole becomes that text; any other run becomes one U+FFFD per byte,
  its valid characters included. So the text of a run is certain when the run ends, or when it cannot be valid any more.
- The space that begins the first word is dropped.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from openai_bls.output.detokenizer.base import REPLACEMENT, Detokenizer, SharedFactory, Vocabulary, continuation

# Rust's integer parser, which reads the two digits, also takes a plus sign.
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_STEP_CODE = {"Replace": "R", "Metaspace": "M", "ByteFallback": "B", "Fuse": "F", "Strip": "S"}


class DecoderSteps(NamedTuple):
    """The steps of a tokenizer.json's decoder in one form."""

    replacements: tuple[tuple[str, str], ...] = ()
    """(old, new) pairs, applied to every token in this order."""
    metaspace: str = ""
    """Stand-in for a space, dropped from the first token with `drop_first`."""
    drop_first: bool = False
    byte_fallback: bool = False
    strip: str = ""
    """Character dropped from the beginning of the whole text, up to `strip_count` times."""
    strip_count: int = 0

    @classmethod
    def parse(cls, decoder: Mapping[str, Any]) -> DecoderSteps | None:
        """Read a decoder's JSON; None if this module does not support it.

        Supported are sequences of `Replace` (of a string), `Metaspace`, `ByteFallback`, `Fuse` and `Strip` (at the
        beginning) in this order. Each is optional, but a `Strip` needs a `Fuse`.
        """
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        if not re.fullmatch("R*M?B?(F+S?)?", "".join(_STEP_CODE.get(s["type"], "?") for s in steps)):
            return None
        parsed: DecoderSteps | None = cls()
        for step in steps:
            if parsed is not None:
                parsed = parsed._with(step)
        return parsed

    def _with(self, step: Mapping[str, Any]) -> DecoderSteps | None:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
                return self._replace(replacements=(*self.replacements, (old, new)))
            case {"type": "Metaspace", "replacement": str(stand_in), "prepend_scheme": scheme}:
                return self._replace(metaspace=stand_in, drop_first=scheme != "never")
            case {"type": "ByteFallback"}:
                return self._replace(byte_fallback=True)
            case {"type": "Strip", "content": str(char), "start": int(count), "stop": 0}:
                return self._replace(strip=char, strip_count=count)
            case {"type": "Fuse"}:
                return self
        return None

    def read(self, token: str, first: bool = False) -> str | int:
        """A token's text, or the value of a byte token."""
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.metaspace:
            token = token.replace(self.metaspace, "" if first and self.drop_first else " ")
        match = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        return int(match[1], 16) if match else token

    def stripped(self, text: str, count: int) -> str:
        """The text without up to `count` leading strip characters."""
        start = 0
        while start < count and text.startswith(self.strip, start):
            start += 1
        return text[start:]


class _Table(NamedTuple):
    """Look-up tables by token id; skipped and unknown ids are in none."""

    whole: dict[int, str]
    """Text of tokens that are not the first."""
    byte_of: dict[int, int]
    """Byte tokens."""
    tokens: dict[int, str]
    """The vocabulary, if the first token of a text is read differently."""
    special: dict[int, str | int]
    """Special tokens that are kept: text or a byte."""

    def is_text(self, token_id: int) -> bool:
        return token_id in self.whole or isinstance(self.special.get(token_id), str)


class ByteFallbackFactory(SharedFactory[_Table]):
    """Makes detokenizers for sentencepiece-like tokenizers.

    The invariant is exact. With a prompt the text is `decode(prompt + ids)` less the prefix it shares with
    `decode(prompt)`, which is all of `decode(prompt)` unless the prompt ends within a run of byte tokens.

    `decode_chunk` returns characters as soon as their bytes are complete, since a run may be longer than the context.
    It equals the whole decode if every run of byte tokens is valid UTF-8; in an invalid run valid characters stay and
    other bytes become one U+FFFD each. A context without text means the text's beginning.
    """

    def __init__(self, vocabulary: Vocabulary, steps: DecoderSteps) -> None:
        self._steps = steps
        self._tokens = vocabulary.tokens if steps.drop_first else {}
        super().__init__(self._table(vocabulary.kept(skip_special_tokens=True)), vocabulary.special)

    def _extended(self, special: dict[int, str]) -> _Table:
        """The tables share `whole`, the large part."""
        return self._plain._replace(special={token_id: self._steps.read(token) for token_id, token in special.items()})

    def _table(self, tokens: Iterable[tuple[int, str]]) -> _Table:
        whole: dict[int, str] = {}
        byte_of: dict[int, int] = {}
        for token_id, token in tokens:
            value = self._steps.read(token)
            if isinstance(value, str):
                whole[token_id] = value
            else:
                byte_of[token_id] = value
        return _Table(whole, byte_of, self._tokens, {})

    def _start(self, shown: _Table, prompt_token_ids: Sequence[int]) -> Detokenizer:
        detokenizer = ByteFallbackDetokenizer(shown, self._steps, _Run())
        if prompt_token_ids:
            detokenizer.prime(prompt_token_ids)
        return detokenizer

    def _start_chunk(self, shown: _Table) -> Detokenizer:
        return ByteFallbackDetokenizer(shown, self._steps, _EagerRun())

    def token_bytes(self, token_id: int) -> bytes:
        """The byte of a byte token; else the text with its leading space."""
        value: str | int | None = None
        parts: tuple[Mapping[int, str | int], ...] = (self._all.whole, self._all.byte_of, self._all.special)
        for part in parts:
            value = part.get(token_id) if value is None else value
        if value is None:
            return b""
        return bytes((value,)) if isinstance(value, int) else value.encode()


class _Run:
    """A run of byte tokens: valid UTF-8 as a whole, or U+FFFD throughout."""

    __slots__ = ("_broken", "_chars", "_tail", "size")

    def __init__(self) -> None:
        self.size = 0
        self._reset()

    def _reset(self) -> None:
        self.size = 0
        self._broken = False
        self._chars: list[str] = []
        self._tail = b""

    def add(self, byte: int) -> str:
        """Return the text that is certain: none until the run cannot be valid."""
        self.size += 1
        if self._broken:
            return REPLACEMENT
        raw = self._tail + bytes((byte,))
        try:
            chars, used = utf_8_decode(raw, "strict", False)
        except UnicodeDecodeError:
            self._broken = True
            return REPLACEMENT * self.size
        self._chars.append(chars)
        self._tail = raw[used:]
        return ""

    def held(self) -> str:
        """The text still to come if the run ends here."""
        if self._broken:
            return ""
        return REPLACEMENT * self.size if self._tail else "".join(self._chars)

    def end(self) -> str:
        text = self.held()
        self._reset()
        return text


class _EagerRun(_Run):
    """A run decoded character by character, so that its text depends on the last three bytes only."""

    __slots__ = ()

    def add(self, byte: int) -> str:
        self.size += 1
        for raw in (self._tail + bytes((byte,)), bytes((byte,))):
            try:
                chars, used = utf_8_decode(raw, "strict", False)
            except UnicodeDecodeError:
                continue
            lost = len(self._tail) + 1 - len(raw)
            self._tail = raw[used:]
            return REPLACEMENT * lost + chars
        lost = len(self._tail) + 1
        self._tail = b""
        return REPLACEMENT * lost

    def held(self) -> str:
        return REPLACEMENT * len(self._tail)


class ByteFallbackDetokenizer(Detokenizer):
    """Holds back a run of byte tokens at the end of the sequence while it can be valid."""

    __slots__ = ("_first", "_plain", "_run", "_seen", "_steps", "_strip", "_table", "_text_of")

    def __init__(self, table: _Table, steps: DecoderSteps, run: _Run) -> None:
        self._table = table
        self._text_of = table.whole.get
        self._steps = steps
        self._run = run
        self._first = steps.drop_first
        self._strip = steps.strip_count
        # Text of the prompt's last run of bytes, which is not returned again.
        self._seen = ""
        # Neither at the beginning nor within a run: the table has each token's text.
        self._plain = not self._first and not self._strip

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text up to the last run of byte tokens."""
        if self._plain:
            if len(token_ids) == 1:
                text = self._text_of(token_ids[0])
                if text is not None:
                    return text
            else:
                try:
                    return "".join(map(self._text_of, token_ids))  # type: ignore[arg-type]
                except TypeError:
                    pass  # One of them is a byte token or skipped.
        parts: list[str] = []
        for token_id in token_ids:
            self._add(token_id, parts)
        return self._release("".join(parts))

    def finish(self) -> str:
        """Return the text of the last run of byte tokens."""
        return self._release(self._run.end())

    def prime(self, prompt: Sequence[int]) -> None:
        """Enter the state after a prompt, whose text is dropped.

        Reads the prompt's first tokens, until `drop_first` and `strip` are done, and its last run of byte tokens.
        """
        position = 0
        while position < len(prompt) and (self._first or self._strip):
            self.push(prompt[position : position + 1])
            position += 1
        run_start = len(prompt)
        while run_start > position and not self._table.is_text(prompt[run_start - 1]):
            run_start -= 1
        if run_start > position:
            self._run.end()
        self.push(prompt[run_start:])
        self._seen = self._steps.stripped(self._run.held(), self._strip)

    def _add(self, token_id: int, parts: list[str]) -> None:
        value: str | int | None = self._text_of(token_id)
        if value is None:
            value = self._table.byte_of.get(token_id)
            if value is None:
                value = self._table.special.get(token_id)
                if value is None:
                    return
        if self._first:
            self._first = False
            value = self._steps.read(self._table.tokens[token_id], first=True)
        if isinstance(value, int):
            parts.append(self._run.add(value))
            return
        if self._run.size:
            parts.append(self._run.end())
        parts.append(value)

    def _release(self, text: str) -> str:
        if text and self._strip:
            rest = self._steps.stripped(text, self._strip)
            self._strip = 0 if rest else self._strip - len(text)
            text = rest
        if text and self._seen:
            text = continuation(self._seen, text)
            self._seen = ""
        self._plain = not self._first and not self._strip and not self._run.size
        return text
