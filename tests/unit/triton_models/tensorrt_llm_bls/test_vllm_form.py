"""`sampling_parameters`, as vLLM's backend takes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.tensorrt_llm_bls import vllm_form
from openai_bls.triton_models.tensors.models import TENSORRT_LLM_BLS

TYPES = {tensor.name: tensor.data_type for tensor in TENSORRT_LLM_BLS.inputs}
DTYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "STRING": np.object_, "BOOL": np.bool_}


def expanded(text: Any, **others: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by the tensors' names, and their places."""
    arrays = {"text_input": np.array([[b"a"], [b"b"]], np.object_), **others}
    given_text = text if isinstance(text, str) else json.dumps(text)
    found, places = vllm_form.expanded({**arrays, vllm_form.NAME: np.full((2, 1), given_text.encode(), np.object_)})
    values = {}
    for name, array in found.items():
        if name not in arrays:
            assert array.dtype == DTYPES[TYPES[name]], name
            assert array[0].tolist() == array[1].tolist()
            values[name] = array[0].tolist()
    return values, places


def test_what_each_member_becomes() -> None:
    given_members = {
        "max_tokens": 5, "min_tokens": "2", "n": 2, "top_k": 7, "seed": 2**63, "temperature": "0.5", "top_p": 0.25,
        "repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1, "stop": ["x", "y"],
        "bad_words": "z", "ignore_eos": True, "logprobs": None,
    }  # fmt: skip
    values, places = expanded(given_members)
    assert values == {
        "max_tokens": [5], "min_tokens": [2], "num_return_sequences": [2], "top_k": [7], "seed": [2**63],
        "temperature": [0.5], "top_p": [0.25], "repetition_penalty": [1.5], "presence_penalty": [1.0],
        "frequency_penalty": [-1.0], "sampling_param_stop": [b"x", b"y"], "bad_words": [b"z"], "end_id": [-1],
    }  # fmt: skip
    assert places["num_return_sequences"] == "sampling_parameters.n"
    assert places.keys() == values.keys()


def test_defaults_are_vllms() -> None:
    for nothing in ("", "{}", {"temperature": None}):
        assert expanded(nothing)[0] == {"max_tokens": [16], "temperature": [1.0]}
    values, _ = expanded({"top_k": -1, "stop": "a", "include_stop_str_in_output": "true"}, max_tokens=np.ones((2, 1)))
    assert values == {"temperature": [1.0], "stop_words": [b"a"]}


def test_without_it_nothing_changes() -> None:
    arrays = {"text_input": np.array([[b"a"]], np.object_)}
    assert vllm_form.expanded(arrays) == (arrays, {})


@pytest.mark.parametrize(
    ("text", "others", "param"),
    [
        ("{", {}, "sampling_parameters"),
        ("[" * 100_000, {}, "sampling_parameters"),
        ("[1]", {}, "sampling_parameters"),
        ({"best_of": 2}, {}, "sampling_parameters.best_of"),
        ({"max_tokens": 1.5}, {}, "sampling_parameters.max_tokens"),
        ({"max_tokens": 2**40}, {}, "sampling_parameters.max_tokens"),
        ({"max_tokens": True}, {}, "sampling_parameters.max_tokens"),
        ({"temperature": "hot"}, {}, "sampling_parameters.temperature"),
        ({"stop": [1]}, {}, "sampling_parameters.stop"),
        ({"ignore_eos": 1}, {}, "sampling_parameters.ignore_eos"),
        ({"max_tokens": 1}, {"max_tokens": np.ones((2, 1), np.int32)}, "max_tokens"),
    ],
)
def test_what_is_refused(text: Any, others: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        expanded(text, **others)
    assert caught.value.param == param


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([*vllm_form._NUMBERS, *vllm_form._FLAGS, *vllm_form._WORDS, "best_of"])


@given(st.dictionaries(names, json_values, max_size=4))
def test_anything_is_taken_or_refused_by_its_name(members: dict[str, Any]) -> None:
    refused = None
    try:
        values, places = expanded(members)
    except InvalidRequestError as error:
        refused = error.param
    else:
        assert values.keys() == places.keys() <= TYPES.keys()
    assert refused in (None, vllm_form.NAME, *(f"{vllm_form.NAME}.{name}" for name in members))
