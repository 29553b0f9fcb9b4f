from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.tensorrt_llm_bls import requests
from openai_bls.triton_models.tensorrt_llm_bls.requests import TextRequest
from tests.unit.core_support import EOS, FakePrompts, engine_info, token_ids


def tensors(**values: Any) -> dict[str, np.ndarray[Any, Any]]:
    """One row, as `generate` sends it; text as BYTES."""
    found = {}
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        is_text = bool(items) and isinstance(items[0], (str, bytes))
        items = [item.encode() if isinstance(item, str) else item for item in items]
        found[name] = np.array([items], dtype=np.object_ if is_text else None)
    return found


async def parse(prompts: FakePrompts | None = None, **values: Any) -> TextRequest:
    given = {"text_input": "Hi", "max_tokens": 5, **values}
    arrays = tensors(**{name: value for name, value in given.items() if value is not None})
    return await requests.parse(arrays, engine_info(), prompts or FakePrompts(), exclude_input_default=True)


async def test_every_field_reaches_the_engine() -> None:
    request = await parse(
        temperature=0.5, top_k=4, top_p=0.5, seed=7, min_tokens=2, presence_penalty=1.0, frequency_penalty=0.5,
        repetition_penalty=1.5, end_id=3, pad_id=2, num_return_sequences=2, stream=True, length_penalty=3.0,
    )  # fmt: skip
    first, second = (request.official.engine_request(9 + index, 0, index) for index in (0, 1))
    assert (first.request_id, first.prompt_token_ids, first.max_tokens) == (9, token_ids("Hi"), 5)
    assert (first.min_tokens, first.stop_token_ids, first.logprobs) == (2, (3,), None)
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 4, 0.5, 7)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, 0.5, 1.5)
    assert second.sampling.seed == 8
    assert request.official.streaming
    assert request.official.exclude_input


async def test_older_and_llm_api_names_mean_the_same() -> None:
    new = await parse(seed=1, min_tokens=3, stream=True, temperature=0.5, top_k=2, exclude_input_in_output=False)
    old = await parse(random_seed=1, min_length=3, stream=True, temperature=0.5, top_k=2, exclude_input_in_output=False)
    llmapi = await parse(
        max_tokens=None, sampling_param_max_tokens=5, sampling_param_seed=1, min_tokens=3, streaming=True,
        sampling_param_temperature=0.5, sampling_param_top_k=2, sampling_param_exclude_input_from_output=False,
        sampling_param_best_of=1, sampling_param_return_perf_metrics=False,
    )  # fmt: skip
    assert new == old == llmapi


async def test_words() -> None:
    """Stop words are strings here, and stay in the text; the LLM API cuts its own off. Empty ones are none."""
    request = await parse(stop_words=["ab", ""], bad_words="")
    assert (request.stop, request.include_stop, request.official.template.stop_words) == (("ab",), True, ())
    request = await parse(sampling_param_stop=["ab", "c"])
    assert (request.stop, request.include_stop) == (("ab", "c"), False)
    prompts = FakePrompts()
    await parse(prompts, bad_words=["x", "yz"])
    assert prompts.requests[0].bad_words == ["x", "yz"]


async def test_bias_of_words() -> None:
    request = await parse(embedding_bias_words=["ab", "b"], embedding_bias_weights=[1.0, -3.0])
    a, b = token_ids("a")[0], token_ids("b")[0]
    assert request.official.template.sampling.logit_bias == {a: 1.0, b: -2.0}


async def test_what_is_asked_for_besides_the_text() -> None:
    plain = await parse(return_log_probs=False, return_finish_reason=False)
    assert (plain.extras, plain.return_log_probs, plain.official.template.logprobs) == (frozenset(), False, None)
    request = await parse(return_finish_reason=True, return_num_input_tokens=True, return_log_probs=True)
    assert request.extras == {"finish_reason", "num_input_tokens"}
    assert (request.return_log_probs, request.official.template.logprobs) == (True, 0)
    request = await parse(return_cumulative_logprob=True)
    assert request.extras == {"cumulative_logprob"}
    assert (request.return_log_probs, request.official.template.logprobs) == (False, 0)


async def test_a_guide() -> None:
    request = await parse(guided_decoding_guide_type="regex", guided_decoding_guide="[0-9]{3}")
    assert request.official.template.grammar is not None


BAD: list[tuple[str, dict[str, Any]]] = [
    ("text_input", {"text_input": None}),
    ("text_input", {"text_input": []}),
    ("text_input", {"text_input": ""}),
    ("text_input", {"text_input": b"\xff"}),
    ("stop_words", {"stop_words": b"\xff"}),
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": 0}),
    ("sampling_param_max_tokens", {"max_tokens": None, "sampling_param_max_tokens": 0}),
    ("sampling_param_max_tokens", {"sampling_param_max_tokens": 5}),
    ("stop_words", {"stop_words": "a", "sampling_param_stop": "b"}),
    ("top_p", {"top_p": 7.0}),
    ("min_tokens", {"min_tokens": 9}),
    ("beam_width", {"beam_width": 2}),
    ("sampling_param_best_of", {"sampling_param_best_of": 2}),
    ("return_context_logits", {"return_context_logits": True}),
    ("return_generation_logits", {"return_generation_logits": True}),
    ("return_perf_metrics", {"return_perf_metrics": True}),
    ("embedding_bias_weights", {"embedding_bias_words": ["a"], "embedding_bias_weights": [1.0, 2.0]}),
    ("embedding_bias_weights", {"embedding_bias_words": ["a"], "embedding_bias_weights": [1000.0]}),
    ("guided_decoding_guide_type", {"guided_decoding_guide": "a"}),
]


@pytest.mark.parametrize(("param", "values"), BAD)
async def test_bad_requests_are_refused_in_the_clients_names(param: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await parse(**values)
    assert caught.value.param == param
    # Of the engine's names, none that a client does not know.
    assert not re.search("request_output_len|runtime_|'embedding_bias'", caught.value.message)


async def test_rows_share_their_words() -> None:
    arrays = tensors(max_tokens=5, end_id=-1)
    arrays["text_input"] = np.array([[b"a"], [b"bc"]], dtype=np.object_)
    request = await requests.parse(arrays, engine_info(), FakePrompts(), exclude_input_default=True)
    assert request.official.prompts == [token_ids("a"), token_ids("bc")]
    assert request.official.template.stop_token_ids == ()
    arrays["stop_words"] = np.array([[b"a"], [b"b"]], dtype=np.object_)
    with pytest.raises(InvalidRequestError) as differ:
        await requests.parse(arrays, engine_info(), FakePrompts(), exclude_input_default=True)
    assert differ.value.param == "stop_words"
    requests.require_one_response(await parse())
    for several, param in ((request, "text_input"), (await parse(stream=True), "stream")):
        with pytest.raises(InvalidRequestError) as refused:
            requests.require_one_response(several)
        assert refused.value.param == param


async def test_the_models_own_end_tokens() -> None:
    assert (await parse()).official.template.stop_token_ids == (EOS,)
