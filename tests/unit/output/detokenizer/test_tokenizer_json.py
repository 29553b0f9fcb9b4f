from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from openai_bls.output.detokenizer import tokenizer_json
from openai_bls.output.detokenizer.base import Vocabulary
from openai_bls.output.detokenizer.factory import from_tokenizer, load
from tests.unit.output import text_tokenizers

PLAIN = ("byte_level", "llama2", "double_strip", "gemma")
OTHERS = ("unigram", "word_piece", "ctc", "no_decoder")


def tokenizer_of(kind: str) -> Any:
    return getattr(text_tokenizers, kind)()


def description_of(kind: str) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(tokenizer_of(kind).to_str())
    return description


def read(description: object) -> tuple[Vocabulary, dict[str, Any]] | None:
    return tokenizer_json.read(json.dumps(description).encode())


@pytest.mark.parametrize("kind", PLAIN)
def test_it_is_what_the_tokenizers_library_makes_of_it(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    plain = read(description_of(kind))
    assert plain is not None
    vocabulary, decoder = plain
    expected = Vocabulary.of(tokenizer)
    assert vocabulary.tokens == expected.tokens
    assert vocabulary.special_ids == expected.special_ids
    assert decoder == json.loads(tokenizer.decoder.__getstate__())


@pytest.mark.parametrize("kind", OTHERS)
def test_others_are_left_to_the_library(kind: str) -> None:
    assert read(description_of(kind)) is None


@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS, "suffix_bpe"])
def test_a_file_gives_what_its_tokenizer_gives(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded, expected = load(tmp_path), from_tokenizer(tokenizer)
    assert type(loaded) is type(expected)
    ids = list(range(tokenizer.get_vocab_size() + 2))
    for skip in (True, False):
        assert loaded.decode_chunk([], ids, True, skip) == expected.decode_chunk([], ids, True, skip)
    assert [loaded.token_bytes(i) for i in ids] == [expected.token_bytes(i) for i in ids]


DOUBTFUL: dict[str, Callable[[dict[str, Any]], object]] = {
    "two ids of a token": lambda file: file["model"]["vocab"].update(another=file["model"]["vocab"]["a"]),
    "a gap": lambda file: file["added_tokens"][-1].update(id=file["added_tokens"][-1]["id"] + 1),
    "added twice": lambda file: file["added_tokens"][-1].update(content=file["added_tokens"][0]["content"]),
    "nameless": lambda file: file["added_tokens"][-1].update(content=""),
    "another id in the vocabulary": lambda file: file["added_tokens"][-1].update(content="a"),
}


@pytest.mark.parametrize("change", DOUBTFUL.values(), ids=DOUBTFUL)
def test_doubtful_ids_are_left_to_the_library(change: Callable[[dict[str, Any]], object]) -> None:
    description = description_of("byte_level")
    change(description)
    assert read(description) is None


def test_added_tokens_may_be_listed_in_any_order_that_the_library_numbers_alike() -> None:
    description = description_of("byte_level")
    description["added_tokens"].reverse()
    plain = read(description)
    expected = Vocabulary.of(Tokenizer.from_str(json.dumps(description)))
    assert plain is None or plain[0].tokens == expected.tokens


@pytest.mark.parametrize(
    "decoder", [None, {}, {"type": 1}, {"type": "Sequence"}, {"type": "ByteLevel", "decoders": []}, {"decoders": [{}]}]
)
def test_a_bad_decoder_is_no_exception(decoder: object) -> None:
    assert read({**description_of("byte_level"), "decoder": decoder}) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_what_is_no_tokenizer_is_left_to_the_library(content: bytes) -> None:
    assert tokenizer_json.read(content) is None
