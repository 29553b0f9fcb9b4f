"""Files of a tokenizer that contradict each other: tokens with other ids than a file gives them, or with none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openai_bls.core.checkpoint import read_json


def contradictions(source: Path, tokenizer: Any) -> list[str]:
    """Tokens to which the files in `source` give other ids than `tokenizer`, which transformers makes of them, has.

    It takes some of what they say, so that the model may have been trained with other ids.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    told = list(_added(source))
    found = {}
    for file, token, number in told:
        has = vocabulary.get(token)
        if has != number:
            made = "makes no token of it" if has is None else f"makes it {has}"
            found[token] = f"{file} gives {token!r} the id {number}, and transformers {made}"
    if (source / "tokenizer.json").is_file():
        known = _vocabulary(source).union(token for _, token, _ in told)
        for token in tokenizer.all_special_tokens:
            if token not in known:
                found[token] = f"no file gives {token!r} an id, and transformers makes it {vocabulary.get(token)}"
    return list(found.values())


def _added(source: Path) -> Iterator[tuple[str, str, int]]:
    """File, token and id of each added token that a file tells of."""
    for entry in _field(source, "tokenizer.json", "added_tokens", []):
        if isinstance(entry, dict):
            yield from _entry("tokenizer.json", entry.get("content"), entry.get("id"))
    for number, entry in _field(source, "tokenizer_config.json", "added_tokens_decoder", {}).items():
        if isinstance(entry, dict) and number.isdecimal():
            yield from _entry("tokenizer_config.json", entry.get("content"), int(number))
    path = source / "added_tokens.json"
    for token, number in read_json(path).items() if path.is_file() else ():
        yield from _entry(path.name, token, number)


def _entry(file: str, token: Any, number: Any) -> Iterator[tuple[str, str, int]]:
    if isinstance(token, str) and isinstance(number, int):
        yield file, token, number


def _vocabulary(source: Path) -> frozenset[str]:
    """Ordinary tokens of the tokenizer.json in `source`."""
    listed = _field(source, "tokenizer.json", "model", {}).get("vocab")
    if isinstance(listed, list):  # of pairs of a token and its score
        return frozenset(pair[0] for pair in listed if isinstance(pair, list) and pair and isinstance(pair[0], str))
    return frozenset(listed) if isinstance(listed, dict) else frozenset()


def _field(source: Path, file: str, name: str, default: Any) -> Any:
    found = read_json(source / file).get(name) if (source / file).is_file() else None
    return found if isinstance(found, type(default)) else default
