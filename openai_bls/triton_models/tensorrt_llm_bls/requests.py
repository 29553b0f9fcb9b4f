"""Official text tensors of `tensorrt_llm_bls`: parser from one Triton request to engine requests.

Everything but the words is read by the parser of `tensorrt_llm`, under its names. Sources: tensorrtllm_backend's
`all_models/inflight_batcher_llm/tensorrt_llm_bls` and, for `LLMAPI_NAMES`, `all_models/llmapi`. Kept: names, shapes and
defaults. Different, and said so: stop words are matched in the text, whatever their tokens are.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np

from openai_bls.core.engine_types import EngineInfo, PromptRequest, PromptResult
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.pipeline.models.registry import PromptClient
from openai_bls.triton_models.tensorrt_llm import requests as engine_requests
from openai_bls.triton_models.tensorrt_llm.requests import OfficialRequest
from openai_bls.triton_models.tensorrt_llm_bls import vllm_form
from openai_bls.triton_models.tensors import word_tensors
from openai_bls.triton_models.tensors.arrays import Arrays, is_true
from openai_bls.triton_models.tensors.models import LLMAPI_NAMES, PASSED_THROUGH, TENSORRT_LLM_BLS

# Name of an input here → that of `tensorrt_llm`. `pad_id` has no effect: nothing is padded.
_ENGINE_NAMES = {
    **PASSED_THROUGH,
    "max_tokens": "request_output_len",
    "end_id": "end_id",
    "return_perf_metrics": "return_perf_metrics",
}
_EXTRAS = {
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
    "return_finish_reason": "finish_reason",
    "return_stop_reason": "stop_reason",
    "return_cumulative_logprob": "cumulative_logprob",
}
"""Input → the output that it asks for."""
_GRAMMARS = FairExecutor(2, "official-grammars")
_OUTPUTS = frozenset(tensor.name for tensor in TENSORRT_LLM_BLS.outputs)


class TextRequest(msgspec.Struct, frozen=True):
    """One Triton request of the contract, tokenized."""

    official: OfficialRequest
    stop: tuple[str, ...] = ()
    include_stop: bool = True
    """Leave the stop string that ended the text in it."""
    extras: frozenset[str] = frozenset()
    """Further outputs to send with the last response of each sequence."""
    return_log_probs: bool = False

    @property
    def stop_param(self) -> str:
        """The input that `stop` is of."""
        return "stop_words" if self.include_stop else "sampling_param_stop"


async def parse(
    arrays: Arrays,
    info: EngineInfo,
    prompts: PromptClient,
    exclude_input_default: bool,
    outputs: frozenset[str] = frozenset(),
    key: str = "",
) -> TextRequest:
    """The request that the input tensors hold.

    Args:
        arrays: the tensors by name.
        info: facts of the engine.
        prompts: client of preprocessing.
        exclude_input_default: value of `exclude_input_in_output` for requests that do not give it.
        outputs: names of the outputs to send: all where the client names none.
        key: name of the API key, by which grammars take turns.

    Raises:
        ApiError: a missing or bad tensor, one that asks for what the engine does not do, or preprocessing cannot be
            reached.
    """
    given, names = _official_names(arrays)
    texts = _prompts(given)
    extras = frozenset(output for name, output in _EXTRAS.items() if is_true(given, name))
    if outputs < _OUTPUTS:
        extras |= outputs.intersection(_EXTRAS.values())
    return_log_probs = is_true(given, "return_log_probs")
    if "return_log_probs" not in given:
        return_log_probs = engine_requests.wants_log_probs(outputs, _OUTPUTS, info, is_true(given, "stream"))
    stop, include_stop = _stop(given)
    tensors = {inner: given[outer] for outer, inner in _ENGINE_NAMES.items() if outer in given}
    engine_names = {inner: names.get(outer, outer) for outer, inner in _ENGINE_NAMES.items()}
    engine_names["embedding_bias"] = "embedding_bias_weights"
    if return_log_probs:
        tensors["return_log_probs"] = np.array([True])
    elif "cumulative_logprob" in extras:
        tensors["return_log_probs"] = np.array([True])
        engine_names["return_log_probs"] = "return_cumulative_logprob"
    bias = await _bias(given, prompts)
    if bias is not None:
        tensors["embedding_bias"] = bias
    try:
        if "guided_decoding_guide_type" in tensors:
            # A large schema takes a while, and other requests' tokens must not wait for it.
            work = partial(engine_requests.parse, tensors, info, exclude_input_default, [])
            official = await asyncio.wrap_future(_GRAMMARS.submit(key, work))
        else:
            official = engine_requests.parse(tensors, info, exclude_input_default, [])
    except InvalidRequestError as error:
        raise renamed(error, engine_names) from None
    result = await _prepare(
        prompts,
        PromptRequest(prompts=texts, bad_words=_words(given, "bad_words"), max_prompt_tokens=info.max_model_len),
    )
    if not all(result.prompt_token_ids):
        raise InvalidRequestError("'text_input' holds an empty prompt.", param="text_input")
    bad_words = tuple(tuple(word) for word in result.bad_words)
    template = msgspec.structs.replace(official.template, bad_words=bad_words)
    return TextRequest(
        msgspec.structs.replace(official, prompts=result.prompt_token_ids, template=template),
        stop=stop,
        include_stop=include_stop,
        extras=extras,
        return_log_probs=return_log_probs,
    )


def require_one_response(request: TextRequest) -> None:
    """Check a request to a model whose decoupled_mode is false; raises `InvalidRequestError`."""
    try:
        engine_requests.require_one_response(request.official)
    except InvalidRequestError as error:
        raise renamed(error, {"streaming": "stream", "input_ids": "text_input"}) from None


def renamed(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """`error` with the names of inputs that the client knows instead of the engine's."""
    message = re.sub(r"'(\w+)'", lambda found: f"'{names.get(found[1], found[1])}'", error.message)
    return InvalidRequestError(message, param=names.get(error.param or "", error.param), code=error.code)


def _official_names(arrays: Arrays) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """The tensors under the official names, and of those that came under another name that one."""
    given, names = vllm_form.expanded(arrays)
    for name, official in LLMAPI_NAMES.items():
        if name not in given:
            continue
        if official in given:
            raise InvalidRequestError(f"'{official}' is given twice: as '{name}' too.", param=name)
        given[official] = given.pop(name)
        names[official] = name
    return given, names


def _prompts(arrays: Arrays) -> list[str]:
    if "text_input" not in arrays:
        raise InvalidRequestError("'text_input' is missing.", param="text_input")
    if not arrays["text_input"].size:
        raise InvalidRequestError("'text_input' is empty.", param="text_input")
    return [word_tensors.text(value, "text_input") for value in arrays["text_input"].reshape(-1).tolist()]


def _stop(arrays: Arrays) -> tuple[tuple[str, ...], bool]:
    """Stop strings, and whether they stay in the text: `stop_words` do, and the LLM API cuts its own off."""
    words, cut_off = _words(arrays, "stop_words"), _words(arrays, "sampling_param_stop")
    if words and cut_off:
        raise InvalidRequestError("'stop_words' is given twice: as 'sampling_param_stop' too.", param="stop_words")
    return tuple(words or cut_off), not cut_off


def _words(arrays: Arrays, name: str) -> list[str]:
    """The words that all rows share; empty ones, which guides send, are none."""
    return [word for word in word_tensors.words(arrays, name, len(arrays["text_input"])) if word]


async def _bias(arrays: Arrays, prompts: PromptClient) -> np.ndarray[Any, Any] | None:
    """FP32 [1, n]: `word_tensors.bias_row`."""
    names = ("embedding_bias_words", "embedding_bias_weights")
    weighted = word_tensors.weighted_words(arrays, *names, len(arrays["text_input"]))
    if not weighted:
        return None
    words, weights = zip(*weighted, strict=True)
    result = await _prepare(prompts, PromptRequest(prompts=list(words), add_special_tokens=False))
    return word_tensors.bias_row(zip(result.prompt_token_ids, weights, strict=True))[np.newaxis]


async def _prepare(prompts: PromptClient, request: PromptRequest) -> PromptResult:
    result = await prompts.prepare(request)
    if result.error is not None:
        raise InvalidRequestError(result.error, param="text_input", code=result.code)
    return result
