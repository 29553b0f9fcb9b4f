"""What is read of a tokenizer.json without the tokenizers library gives what the library gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from openai_bls.output.detokenizer import tokenizer_json
from openai_bls.output.detokenizer.factory import from_tokenizer, load
from tests.unit.output import text_tokenizers

PLAIN = ("byte_level", "llama2", "double_strip", "gemma")
OTHERS = ("unigram", "word_piece", "ctc", "no_decoder", "suffix_bpe")


def check(file: Path) -> None:
    """A file gives what its tokenizer gives."""
    tokenizer = Tokenizer.from_file(str(file))
    loaded, expected = load(file), from_tokenizer(tokenizer)
    assert type(loaded) is type(expected)
    ids = list(range(tokenizer.get_vocab_size() + 2))
    for skip in (True, False):
        assert loaded.decode_chunk([], ids, True, skip) == expected.decode_chunk([], ids, True, skip)
    assert [loaded.token_bytes(i) for i in ids] == [expected.token_bytes(i) for i in ids]


@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS])
def test_every_kind(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    getattr(text_tokenizers, kind)().save(str(file))
    check(file)
    # Else a start takes a second more.
    assert kind not in PLAIN or tokenizer_json.read(file.read_bytes()) is not None


DOUBTFUL: dict[str, Callable[[dict[str, Any]], object]] = {
    "two ids of a token": lambda file: file["model"]["vocab"].update(another=file["model"]["vocab"]["a"]),
    "a gap": lambda file: file["added_tokens"][-1].update(id=file["added_tokens"][-1]["id"] + 1),
    "added twice": lambda file: file["added_tokens"][-1].update(content=file["added_tokens"][0]["content"]),
    "nameless": lambda file: file["added_tokens"][-1].update(content=""),
    "another id in the vocabulary": lambda file: file["added_tokens"][-1].update(content="a"),
}


@pytest.mark.parametrize("change", DOUBTFUL.values(), ids=DOUBTFUL)
def test_doubtful_ids_are_left_to_the_library(change: Callable[[dict[str, Any]], object]) -> None:
    description = json.loads(text_tokenizers.byte_level().to_str())
    change(description)
    assert tokenizer_json.read(json.dumps(description).encode()) is None


@pytest.mark.parametrize(
    "decoder", [None, {}, {"type": 1}, {"type": "Sequence"}, {"type": "ByteLevel", "decoders": []}, {"decoders": [{}]}]
)
def test_a_bad_decoder_is_no_exception(decoder: object) -> None:
    description = {**json.loads(text_tokenizers.byte_level().to_str()), "decoder": decoder}
    assert tokenizer_json.read(json.dumps(description).encode()) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_what_is_no_tokenizer_is_left_to_the_library(content: bytes) -> None:
    assert tokenizer_json.read(content) is None
