from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from openai_bls.core import word_lists
from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError, TooLargeError
from openai_bls.core.settings import PreprocessingSettings
from openai_bls.triton_models.preprocessing.model import Preprocessing
from openai_bls.triton_models.tensors.models import PREPROCESSING
from tests.unit.core_support import EOS, tiny_tokenizer, token_ids
from tests.unit.triton_models.dtypes import numpy_dtype

PAD = tiny_tokenizer().token_to_id("<|endoftext|>")


@pytest.fixture(scope="module")
def preprocessing(tokenizer_dir: Path) -> Preprocessing:
    return Preprocessing(tokenizer_dir)


def strings(*rows: list[Any]) -> np.ndarray[Any, Any]:
    array = np.empty((len(rows), len(rows[0])), dtype=np.object_)
    for at, row in enumerate(rows):
        array[at] = [item.encode() if isinstance(item, str) else item for item in row]
    return array


def test_official_tensors(preprocessing: Preprocessing) -> None:
    outputs = preprocessing(
        {
            "QUERY": strings(["abc"], ["é"]),
            "REQUEST_OUTPUT_LEN": np.array([[5], [5]], dtype=np.int32),
            "STOP_WORDS_DICT": strings(["x", ""], ["x", ""]),
        }
    )
    names = [tensor.name for tensor in PREPROCESSING.outputs]
    # Those after it are of prompts with images.
    official = PREPROCESSING.outputs[: names.index("OUT_PAD_ID") + 1]
    assert set(outputs) == {tensor.name for tensor in official}
    dtypes = {tensor.name: numpy_dtype(tensor) for tensor in official}
    assert {name: array.dtype for name, array in outputs.items()} == dtypes
    assert outputs["INPUT_ID"].tolist() == [token_ids("abc"), [*token_ids("é"), PAD]]
    assert outputs["REQUEST_INPUT_LEN"].tolist() == [[3], [2]]
    assert outputs["REQUEST_OUTPUT_LEN"].tolist() == [[5], [5]]
    assert outputs["DECODER_INPUT_ID"].tolist() == [[PAD], [PAD]]
    assert outputs["REQUEST_DECODER_INPUT_LEN"].tolist() == [[1], [1]]
    assert outputs["OUT_END_ID"].tolist() == [[EOS], [EOS]]
    assert outputs["OUT_PAD_ID"].tolist() == [[PAD], [PAD]]
    assert outputs["BAD_WORDS_IDS"].shape == (2, 2, 0)
    assert outputs["EMBEDDING_BIAS"].shape == (2, 0)
    for row in outputs["STOP_WORDS_IDS"]:
        assert word_lists.decode(row, "w") == [tuple(token_ids("x")), tuple(token_ids(" x"))]


def test_bias_adds_up_over_the_tokens_of_words(preprocessing: Preprocessing) -> None:
    outputs = preprocessing(
        {
            "QUERY": strings(["a"], ["b"]),
            "EMBEDDING_BIAS_WORDS": strings(*[["xyx", "y", "", " z"]] * 2),
            "EMBEDDING_BIAS_WEIGHTS": np.array([[1.0, -3.0, 50.0, 0.5]] * 2, dtype=np.float32),
        }
    )
    expected = {"x": 2.0, "y": -2.0, " ": 0.5, "z": 0.5}
    bias = {token_ids(char)[0]: weight for char, weight in expected.items()}
    for row in outputs["EMBEDDING_BIAS"].tolist():
        assert {at: value for at, value in enumerate(row) if value} == bias
        assert len(row) == max(bias) + 1


def test_given_ids_win(preprocessing: Preprocessing) -> None:
    outputs = preprocessing(
        {
            "QUERY": strings(["a"], ["bc"]),
            "END_ID": np.array([[1], [2]], dtype=np.int32),
            "PAD_ID": np.array([[8], [9]], dtype=np.int32),
        }
    )
    assert outputs["OUT_END_ID"].tolist() == [[1], [2]]
    assert outputs["INPUT_ID"].tolist() == [[*token_ids("a"), 8], token_ids("bc")]


@pytest.mark.parametrize(
    ("arrays", "param"),
    [
        ({}, "QUERY"),
        ({"QUERY": strings([""])}, "QUERY"),
        ({"QUERY": strings(["a"], [""])}, "QUERY"),
        ({"QUERY": strings([b"\xff"])}, "QUERY"),
        ({"QUERY": strings(["a"]), "STOP_WORDS_DICT": strings([b"\xff"])}, "STOP_WORDS_DICT"),
        ({"QUERY": strings(["a"], ["b"]), "BAD_WORDS_DICT": strings(["x"], ["y"])}, "BAD_WORDS_DICT"),
        ({"QUERY": strings(["a"]), "EMBEDDING_BIAS_WORDS": strings(["x"])}, "EMBEDDING_BIAS_WEIGHTS"),
        ({"QUERY": strings(["a"]), "EMBEDDING_BIAS_WEIGHTS": np.ones((1, 1))}, "EMBEDDING_BIAS_WEIGHTS"),
        (
            {"QUERY": strings(["a"]), "EMBEDDING_BIAS_WORDS": strings([b"\xff"]), "EMBEDDING_BIAS_WEIGHTS": np.ones(1)},
            "EMBEDDING_BIAS_WORDS",
        ),
    ],
)
def test_bad_official_tensors(preprocessing: Preprocessing, arrays: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        preprocessing(arrays)
    assert info.value.param == param


@pytest.mark.parametrize("named", [{"INPUT_ID", "REQUEST_OUTPUT_LEN"}, {"INPUT_ID"}, set()])
def test_a_length_that_is_named_as_an_output_is_needed(preprocessing: Preprocessing, named: set[str]) -> None:
    """A step of an ensemble names its outputs; most other clients name none."""
    arrays = {"QUERY": strings(["a"])}
    if "REQUEST_OUTPUT_LEN" not in named:
        assert "INPUT_ID" in preprocessing(arrays, frozenset(named))
        return
    with pytest.raises(InvalidRequestError) as info:
        preprocessing(arrays, frozenset(named))
    assert info.value.param == "REQUEST_OUTPUT_LEN"


def test_a_missing_tokenizer_is_an_os_or_value_error(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        Preprocessing(tmp_path)


@pytest.mark.parametrize(
    ("rows", "param"),
    [
        ([[b"\xc1"]], "PROMPT_REQUEST"),
        ([["[1]"]], "PROMPT_REQUEST"),
        ([[msgspec.msgpack.encode({"unknown": 1})]], "PROMPT_REQUEST"),
        ([[msgspec.msgpack.encode({})], [msgspec.msgpack.encode({})]], "PROMPT_REQUEST"),
        ([[b"\x91" * 100_000]], "PROMPT_REQUEST"),
        # Any client of the server may send it, and a template is a program.
        ([[msgspec.msgpack.encode({"chat_template": "{{ 1 }}", "messages": []})]], "chat_template"),
    ],
)
def test_whole_requests_that_are_refused(preprocessing: Preprocessing, rows: list[list[Any]], param: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        preprocessing({"QUERY": strings([""]), "PROMPT_REQUEST": strings(*rows)})
    assert info.value.param == param


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    manifest = {"engine": "null", "model_name": "tiny", "max_model_len": 5000, "max_batch_size": 1, "created": 0}
    (tmp_path / "engine.json").write_text(json.dumps(manifest | {"format_version": 1}), encoding="utf-8")
    return tmp_path


def test_a_query_that_cannot_fit_the_engines_context(tokenizer_dir: Path, engine_dir: Path, tmp_path: Path) -> None:
    """The engine may be another after a reload, or there may be none."""
    preprocessing = Preprocessing(tokenizer_dir, engine_dir=lambda: engine_dir)
    assert len(preprocessing({"QUERY": strings(["a" * 5000])})["INPUT_ID"][0]) == 5000
    with pytest.raises(InvalidRequestError) as caught:
        preprocessing({"QUERY": strings(["a"], ["ab " * 200_000])})
    assert (caught.value.param, caught.value.code) == ("QUERY", "context_length_exceeded")
    (engine_dir / "engine.json").unlink()
    assert len(preprocessing({"QUERY": strings(["ab " * 10_000])})["INPUT_ID"][0]) == 30_000


@pytest.mark.parametrize(
    ("setting", "context", "limit"),
    [(0, 5000, 1 << 20), (0, 200_000, 1_600_000), (0, None, 1 << 20), (70_000, 5000, 70_000)],
)
def test_bytes_of_a_prompt(
    tokenizer_dir: Path, engine_dir: Path, setting: int, context: int | None, limit: int
) -> None:
    manifest = json.loads((engine_dir / "engine.json").read_text())
    (engine_dir / "engine.json").write_text(json.dumps(manifest | {"max_model_len": context or "none"}))
    preprocessing = Preprocessing(tokenizer_dir, PreprocessingSettings(max_prompt_bytes=setting), lambda: engine_dir)
    codes = [preprocessing.prepare(PromptRequest(prompts=["a" * size])).code for size in (limit, limit + 1)]
    assert codes == [None, "string_above_max_length"]


def test_a_cache_of_any_size_changes_no_tokens(tokenizer_dir: Path) -> None:
    sizes = (0, 20_000, 64 << 20)
    models = [Preprocessing(tokenizer_dir, PreprocessingSettings(prompt_cache_bytes=size)) for size in sizes]
    for turns in range(1, 40, 3):
        messages = [{"role": "user", "content": f"{at} é " * 200} for at in range(turns)]
        first, *others = [model.prepare(PromptRequest(messages=messages)) for model in models]
        assert first.error is None
        assert others == [first, first]
        texts = strings(["".join(message["content"] for message in messages)], ["<|im_end|> é" * 700 * turns])
        rows = [model({"QUERY": texts})["INPUT_ID"].tolist() for model in models]
        assert rows[1:] == rows[:1] * 2


def test_a_request_that_is_too_large(tokenizer_dir: Path) -> None:
    preprocessing = Preprocessing(tokenizer_dir, PreprocessingSettings(max_request_bytes=10))
    arrays = {"QUERY": strings(["12345"]), "REQUEST_OUTPUT_LEN": np.array([[5]], dtype=np.int32)}
    assert len(preprocessing(arrays)["INPUT_ID"][0]) == 5
    with pytest.raises(TooLargeError):
        preprocessing({**arrays, "STOP_WORDS_DICT": strings(["123456"])})
