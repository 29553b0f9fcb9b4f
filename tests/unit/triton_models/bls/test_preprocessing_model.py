from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openai_bls.triton_models.bls.preprocessing_model import PreprocessingModel
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.models import PREPROCESSING

OUTPUT = 'output [ { name: "INPUT_ID" data_type: TYPE_INT32 dims: [ -1 ] } ]'


def model(folder: Path, text: str) -> PreprocessingModel:
    (folder / "preprocessing").mkdir()
    (folder / "preprocessing" / "config.pbtxt").write_text(text, encoding="utf-8")
    return PreprocessingModel(folder / "preprocessing")


def tensor(name: str, data_type: str, dims: str = "[ 1 ]", more: str = "") -> str:
    return f'input [ {{ name: "{name}" data_type: {data_type} dims: {dims} {more} }} ]'


def test_ours_takes_whole_requests(tmp_path: Path) -> None:
    ours = model(tmp_path, render(PREPROCESSING))
    assert ours.name == "preprocessing"
    assert ours.declares("PROMPT_REQUEST", "PROMPT_RESULT")
    arrays = ours.inputs(PROMPT_REQUEST=[b"\x00a\x00"])
    # Its own text is not needed then.
    assert {name: array.tolist() for name, array in arrays.items()} == {"PROMPT_REQUEST": [[b"\x00a\x00"]]}


def test_required_inputs_are_filled_and_optional_ones_left_out(tmp_path: Path) -> None:
    query, length = tensor("QUERY", "TYPE_STRING"), tensor("REQUEST_OUTPUT_LEN", "TYPE_INT32", "[ -1 ]")
    words = tensor("BAD_WORDS_DICT", "TYPE_STRING", "[ -1 ]", "optional: true")
    images = tensor("IMAGE_BYTES", "TYPE_UINT8", "[ -1, -1, -1 ]", "optional: true")
    theirs = model(tmp_path, "\n".join(("max_batch_size: 8", query, length, words, images, OUTPUT)))
    assert not theirs.declares("PROMPT_REQUEST")
    arrays = theirs.inputs(QUERY=[b"a"])
    assert arrays.keys() == {"QUERY", "REQUEST_OUTPUT_LEN"}
    assert arrays["QUERY"].tolist() == [[b"a"]]
    assert arrays["REQUEST_OUTPUT_LEN"].tolist() == [[1]]
    assert arrays["REQUEST_OUTPUT_LEN"].dtype == np.int32
    assert theirs.inputs(QUERY=[b"."], BAD_WORDS_DICT=[b"a", b"b"])["BAD_WORDS_DICT"].tolist() == [[b"a", b"b"]]


@pytest.mark.parametrize(("dims", "shape"), [("[ 1 ]", (1,)), ("[ -1, 1 ]", (1, 1))])
def test_without_batches_there_is_no_batch_dimension(tmp_path: Path, dims: str, shape: tuple[int, ...]) -> None:
    theirs = model(tmp_path, tensor("QUERY", "TYPE_STRING", dims) + OUTPUT)
    assert theirs.inputs(QUERY=[b"a"])["QUERY"].shape == shape


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("input {", "config.pbtxt"),
        ("", "no input QUERY"),
        (tensor("QUERY", "TYPE_STRING"), "no output INPUT_ID"),
        (tensor("QUERY", "TYPE_INT32") + OUTPUT, "QUERY .*TYPE_INT32"),
        (tensor("QUERY", "TYPE_STRING") + tensor("LANGUAGE", "TYPE_STRING") + OUTPUT, "LANGUAGE .*optional"),
        (tensor("QUERY", "TYPE_STRING") + tensor("X", "TYPE_FP32") + OUTPUT, "X .*TYPE_FP32"),
        (tensor("QUERY", "TYPE_STRING") + OUTPUT + "model_transaction_policy { decoupled: true }", "decoupled"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"model preprocessing .*BLS: .*{reason}"):
        model(tmp_path, text)


def test_a_model_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model preprocessing .*BLS"):
        PreprocessingModel(tmp_path / "preprocessing")
