from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core import word_lists
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, Grammar, SamplingParams
from openai_bls.triton_models.tensorrt_llm import requests
from openai_bls.triton_models.tensors.models import TENSORRT_LLM
from openai_bls_tensorrt_llm.legacy import encoding
from openai_bls_tensorrt_llm.legacy.cpp_backend import CppSettings, cpp_model
from tests.unit.core_support import engine_info
from tests.unit.triton_models.dtypes import numpy_dtype

MODEL = cpp_model(CppSettings(gpt_model_path="/engine"), 8)
DECLARED = {tensor.name: tensor for tensor in MODEL.inputs}
INPUTS = frozenset(DECLARED)
GREEDY = SamplingParams(temperature=0)


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"request_id": 1, "prompt_token_ids": [5, 6, 7], "max_tokens": 9, **fields})


def encode(info: EngineInfo | None = None, inputs: frozenset[str] = INPUTS, **fields: Any) -> dict[str, Any]:
    return encoding.encode(request(**fields), info or engine_info(), inputs)


def values(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array.reshape(-1).tolist() for name, array in arrays.items()}


def test_a_plain_request() -> None:
    arrays = encode(engine_info(pad_token_id=0), sampling=GREEDY, stop_token_ids=(2,))
    assert values(arrays) == {
        "input_ids": [5, 6, 7],
        "input_lengths": [3],
        "request_output_len": [9],
        "streaming": [True],
        "runtime_top_k": [1],
        "runtime_top_p": [1.0],
        "temperature": [1.0],
        "end_id": [2],
        "pad_id": [0],
        "exclude_input_in_output": [True],
    }


def test_every_tensor_is_declared_with_its_type_and_shape() -> None:
    arrays = encode(
        sampling=SamplingParams(0.5, 0.9, 7, 0.0, 3, 1.1, 0.2, 0.3, {4: -100.0}),
        stop_token_ids=(2, 3),
        stop_words=((4, 5),),
        bad_words=((6,), (7, 8)),
        min_tokens=2,
        logprobs=0,
        grammar=Grammar("regex", "a+"),
    )
    arrays |= encoding.stop_arrays()
    for name, array in arrays.items():
        tensor = DECLARED[name]
        assert array.dtype == numpy_dtype(tensor), name
        # One dimension for the batch.
        assert array.shape[0] == 1
        assert len(array.shape) == 1 + len(tensor.dims), name
        for size, declared in zip(array.shape[1:], tensor.dims, strict=True):
            assert declared in (-1, size), name
    needed = {tensor.name for tensor in MODEL.inputs if not tensor.optional}
    assert needed <= set(encode()), "Triton refuses a request without them"
    assert needed <= set(encoding.stop_arrays())


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        # A temperature without top_k or top_p would be ignored.
        (SamplingParams(temperature=0.5), {"temperature": 0.5, "runtime_top_k": 0, "runtime_top_p": 1.0}),
        (SamplingParams(top_k=7, top_p=0.5), {"temperature": 1.0, "runtime_top_k": 7, "runtime_top_p": 0.5}),
        (SamplingParams(0.0, 0.5, 7), {"temperature": 1.0, "runtime_top_k": 1, "runtime_top_p": 1.0}),
        (SamplingParams(seed=2**64 - 1), {"seed": 2**64 - 1}),
        (SamplingParams(frequency_penalty=0.5), {"frequency_penalty": 0.5}),
        (SamplingParams(presence_penalty=-0.5), {"presence_penalty": -0.5}),
        (SamplingParams(repetition_penalty=1.5), {"repetition_penalty": 1.5}),
    ],
)
def test_sampling(sampling: SamplingParams, expected: dict[str, Any]) -> None:
    found = values(encode(sampling=sampling))
    assert {name: found[name] for name in expected} == {name: [value] for name, value in expected.items()}
    neutral = {"frequency_penalty", "presence_penalty", "repetition_penalty", "embedding_bias"} - set(expected)
    assert not neutral & set(found)


def test_requests_without_a_seed_get_different_ones() -> None:
    seeds = {encode(sampling=SamplingParams())["seed"].item() for _ in range(8)}
    assert len(seeds) == 8


def test_further_end_tokens_go_as_stop_words() -> None:
    arrays = encode(stop_token_ids=(2, 3, 4), stop_words=((5, 6),))
    assert arrays["end_id"].item() == 2
    assert word_lists.decode(arrays["stop_words_list"][0], "") == [(3,), (4,), (5, 6)]
    assert "end_id" not in encode()
    assert "stop_words_list" not in encode(stop_token_ids=(2,))


def test_a_bias_is_as_long_as_the_vocabulary() -> None:
    bias = encode(engine_info(vocab_size=11), sampling=SamplingParams(logit_bias={3: 1.5, 10: -100.0}))[
        "embedding_bias"
    ]
    assert bias.shape == (1, 11)
    assert np.flatnonzero(bias[0]).tolist() == [3, 10]


def test_guides() -> None:
    found = values(encode(grammar=Grammar("ebnf", "root ::= é")))
    assert found["guided_decoding_guide_type"] == [b"ebnf_grammar"]
    assert found["guided_decoding_guide"] == ["root ::= é".encode()]


def test_only_what_the_model_declares_is_sent() -> None:
    arrays = encode(inputs=frozenset(encoding.REQUIRED_INPUTS), stop_token_ids=(2,))
    assert set(arrays) <= set(encoding.REQUIRED_INPUTS) <= {tensor.name for tensor in TENSORRT_LLM.inputs}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sampling": SamplingParams(top_k=1025)}, "top_k"),
        ({"min_tokens": 1, "stop_words": ((3,),)}, "min_tokens"),
        ({"logprobs": 0, "sampling": SamplingParams(temperature=0.5)}, "temperature"),
        ({"logprobs": 0, "sampling": SamplingParams(presence_penalty=0.5)}, "presence_penalty"),
        ({"logprobs": 0, "grammar": Grammar("regex", "a")}, "grammar"),
        ({"logprobs": 0, "bad_words": ((3,),)}, "bad_words"),
    ],
)
def test_refused(fields: dict[str, Any], named: str) -> None:
    assert named in (encoding.refusal(request(**fields)) or "")


def test_not_refused() -> None:
    for fields in ({}, {"logprobs": 0, "sampling": GREEDY}, {"sampling": SamplingParams(top_k=1024)}):
        assert encoding.refusal(request(**fields)) is None


_TOKENS = st.integers(0, 90).filter(lambda token_id: token_id != 2)
"""Any but the one that ends the output: a stop word that goes on after it is refused."""
_WORDS = st.lists(st.lists(_TOKENS, min_size=1, max_size=4).map(tuple), max_size=3).map(tuple)


@given(
    prompt=st.lists(st.integers(0, 99), min_size=1),
    max_tokens=st.integers(1, 50),
    stop=_WORDS,
    bad=_WORDS,
    top_k=st.integers(0, 1024),
    top_p=st.floats(0.125, 1, width=16),
    temperature=st.floats(0.125, 2, width=16),
    seed=st.integers(0, 2**64 - 1),
)
def test_our_own_reader_of_the_contract_gets_the_same_request(
    prompt: list[int], max_tokens: int, stop: Any, bad: Any, top_k: int, top_p: float, temperature: float, seed: int
) -> None:
    sent = request(
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        stop_token_ids=(2,),
        stop_words=stop,
        bad_words=bad,
        sampling=SamplingParams(temperature, top_p, top_k, seed=seed),
    )
    info = engine_info(vocab_size=100, eos_token_ids=(2,))
    read = requests.parse(encoding.encode(sent, info, INPUTS), info, exclude_input_default=False)
    assert read.streaming
    assert read.prompts == [prompt]
    for field in ("max_tokens", "stop_token_ids", "stop_words", "bad_words", "sampling"):
        assert getattr(read.template, field) == getattr(sent, field)
