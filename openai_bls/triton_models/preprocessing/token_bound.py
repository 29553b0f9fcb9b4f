"""Lower bound on the tokens of a text, so that one that is far too long is refused before it is tokenized.

A token covers no more bytes than the longest one has, and touches no more words than the one with most. That holds
where nothing of a text is dropped and nothing unknown is merged: for BPE over bytes (GPT-2, Llama 3, Qwen) or
with a fallback to bytes (Llama 2, Mistral, Gemma), and normalizers that keep white space. No bound is known otherwise.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from openai_bls.output.detokenizer.byte_level import BYTE_OF, token_bytes

NFC_SHRINK = 4
"""NFC makes a text at most this many times smaller in UTF-8 (ΐ can be 7 bytes and becomes 2)."""

# Characters that are looked at together.
_SLICE = 1 << 16
_SPACE = re.compile(r"\s")
# What words of bytes are split at.
_SEPARATORS = " \t\n\r\x0b\x0c▁"
# UTF-8 bytes that a character has at most.
_CHAR_BYTES = 4
# Characters per token up to which a text may well fit. Longer ones mostly show in a few slices that they do not.
_CHARS_PER_TOKEN = 8
_METASPACE = "▁".encode()
_PRE_TOKENIZERS = {"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation"}


class _Added(msgspec.Struct):
    content: str
    lstrip: bool = False
    rstrip: bool = False


class _Bpe(msgspec.Struct):
    type: str
    vocab: dict[str, int]
    byte_fallback: bool = False


class _File(msgspec.Struct):
    model: _Bpe
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[_Added] = []


class TokenBound(NamedTuple):
    """Lower bound of a tokenizer."""

    bytes_per_token: int
    words_per_token: int
    strips: bool = False
    """An added token takes adjacent white space along."""

    def exceeded_by(self, text: str, limit: int) -> bool:
        """True if `text` has more than `limit` tokens for certain; reads no more of it than it takes to know."""
        if not self.strips and len(text) > limit * self.bytes_per_token:
            return True
        if self._fits_for_certain(text, limit):
            return False
        size = words = 0
        inside = False
        for start in range(0, len(text), _SLICE):
            piece = text[start : start + _SLICE]
            data = (_SPACE.sub(" ", piece) if self.strips else piece).encode(errors="replace")
            size += len(data) - (data.count(b" ") if self.strips else 0)
            data = data.replace(_METASPACE, b" ")
            # A word that goes on from the slice before is counted already.
            words += len(data.split()) - (inside and not data[:1].isspace())
            inside = not data[-1:].isspace()
            if size > limit * self.bytes_per_token or words > limit * self.words_per_token:
                return True
        return False

    def _fits_for_certain(self, text: str, limit: int) -> bool:
        """True if neither bytes nor words can be too many; a look that costs a fraction of counting them."""
        if len(text) > limit * _CHARS_PER_TOKEN or len(text) * _CHAR_BYTES > limit * self.bytes_per_token:
            return False
        most = limit * self.words_per_token
        # Two words have a separator between them.
        return len(text) // 2 < most or (not self.strips and sum(map(text.count, _SEPARATORS)) < most)


def token_bound(tokenizer_json: str | bytes) -> TokenBound | None:
    """The bound of a tokenizer.json; None if none is known."""
    try:
        file = msgspec.json.decode(tokenizer_json, type=_File)
    except msgspec.MsgspecError:
        return None
    steps = _flat(file.pre_tokenizer, "pretokenizers")
    shrink = _shrink(_flat(file.normalizer, "normalizers"))
    kept = all(step.get("type") in _PRE_TOKENIZERS and step.get("behavior") != "Removed" for step in steps)
    if file.model.type != "BPE" or not kept or shrink is None:
        return None
    vocab = file.model.vocab
    if any(step["type"] == "ByteLevel" for step in steps) and BYTE_OF.keys() <= vocab.keys():
        tokens = [token_bytes(token) for token in vocab]
    elif file.model.byte_fallback and all(f"<0x{byte:02X}>" in vocab for byte in range(256)):
        tokens = [token.encode(errors="replace") for token in vocab]
    else:
        return None
    tokens += [added.content.encode() for added in file.added_tokens]
    words = (len(token.replace(_METASPACE, b" ").split()) for token in tokens)
    return TokenBound(
        bytes_per_token=max(map(len, tokens)) * shrink,
        words_per_token=max(1, *words),
        strips=any(added.lstrip or added.rstrip for added in file.added_tokens),
    )


def _flat(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """A step of the file, or those of a sequence."""
    if step is None:
        return []
    return [part for inner in step[name] for part in _flat(inner, name)] if step.get("type") == "Sequence" else [step]


def _shrink(normalizers: list[dict[str, Any]]) -> int | None:
    """Factor by which a text can shrink at most; None if that is not known, or if words can vanish."""
    shrink = 1
    for step in normalizers:
        if step.get("type") == "NFC":
            shrink = NFC_SHRINK
        elif step.get("type") == "Replace":
            if (step.get("pattern"), step.get("content")) != ({"String": " "}, _METASPACE.decode()):
                return None
        elif step.get("type") != "Prepend":
            return None
    return shrink
