from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.postprocessing.model import Postprocessing
from openai_bls.triton_models.tensors.models import DECODE_CONTEXT_LENGTH
from tests.unit.core_support import EOS, token_ids


@pytest.fixture(scope="module")
def postprocessing(tokenizer_dir: Path) -> Postprocessing:
    return Postprocessing(tokenizer_dir)


def tokens(*rows: list[list[int]]) -> np.ndarray[Any, Any]:
    return np.array(rows, dtype=np.int32)


def output(postprocessing: Postprocessing, arrays: dict[str, Any]) -> list[str]:
    outputs = postprocessing(arrays)
    assert set(outputs) == {"OUTPUT"}
    assert outputs["OUTPUT"].dtype == np.object_
    return [text.decode() for text in outputs["OUTPUT"]]


def test_rows_and_beams(postprocessing: Postprocessing) -> None:
    arrays = {"TOKENS_BATCH": tokens([token_ids("ab"), token_ids("cd")], [token_ids("ef"), token_ids("é")])}
    assert output(postprocessing, arrays) == ["ab", "cd", "ef", "é"]


def test_lengths_and_padding(postprocessing: Postprocessing) -> None:
    arrays = {
        "TOKENS_BATCH": tokens([token_ids("abc")], [[*token_ids("x"), -1, -1]]),
        "SEQUENCE_LENGTH": np.array([[2], [3]], dtype=np.int32),
    }
    assert output(postprocessing, arrays) == ["ab", "x"]
    assert output(postprocessing, {"TOKENS_BATCH": np.zeros((1, 1, 0), np.int32)}) == [""]


def test_without_tokens(postprocessing: Postprocessing) -> None:
    # Triton counts inputs, it does not look for each.
    with pytest.raises(InvalidRequestError) as refused:
        postprocessing({"SEQUENCE_LENGTH": np.array([[2]], dtype=np.int32)})
    assert refused.value.param == "TOKENS_BATCH"


def test_special_tokens(postprocessing: Postprocessing) -> None:
    arrays: dict[str, Any] = {"TOKENS_BATCH": tokens([[*token_ids("a"), EOS]])}
    assert output(postprocessing, arrays) == ["a"]
    arrays["SKIP_SPECIAL_TOKENS"] = np.array([[False]])
    assert output(postprocessing, arrays) == ["a<|im_end|>"]


@given(st.text(alphabet="aé中👍\0 \n", max_size=12), st.lists(st.integers(0, 40), max_size=5))
@settings(deadline=None, max_examples=80)
def test_pieces_of_a_stream_join_to_the_text(postprocessing: Postprocessing, text: str, cuts: list[int]) -> None:
    ids = token_ids(text)
    places = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    pieces = []
    for start, end in itertools.pairwise(places):
        context = ids[max(0, start - DECODE_CONTEXT_LENGTH) : start]
        arrays = {
            "TOKENS_BATCH": tokens([ids[start:end]]),
            "DECODE_CONTEXT": np.array([[-1] * (DECODE_CONTEXT_LENGTH - len(context)) + context], dtype=np.int32),
            "DECODE_FINAL": np.array([[end == len(ids)]]),
        }
        pieces.append(output(postprocessing, arrays)[0])
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize(
    "arrays",
    [
        {"TOKENS_BATCH": np.zeros((1, 2), np.int32)},
        {"TOKENS_BATCH": np.zeros((1, 1, 2), np.int32), "SEQUENCE_LENGTH": np.array([[3]])},
        {"TOKENS_BATCH": np.zeros((1, 1, 2), np.int32), "SEQUENCE_LENGTH": np.array([[-1]])},
        {"TOKENS_BATCH": np.zeros((1, 2, 2), np.int32), "SEQUENCE_LENGTH": np.array([[1]])},
    ],
)
def test_shapes_that_do_not_fit(postprocessing: Postprocessing, arrays: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        postprocessing(arrays)
