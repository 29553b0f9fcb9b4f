"""Tokens for the null engine: words, so that each makes a text event and no character is split."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_COUNT = 64
# How byte-level tokenizers write a space and a word.
_WORD = re.compile(r"Ġ[a-z]{2,8}")


def word_token_ids(repository: Path) -> list[int]:
    """The first 64 tokens that are a space and a word; none if the tokenizer in `repository` is of another kind."""
    files = sorted(repository.glob("preprocessing/*/tokenizer/tokenizer.json"))
    if not files:
        return []
    vocabulary = msgspec.json.decode(files[-1].read_bytes())["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        return []
    return sorted(token_id for token, token_id in vocabulary.items() if _WORD.fullmatch(token))[:_COUNT]
