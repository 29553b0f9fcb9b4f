"""Encoder of an engine request to official input tensors, with the names of TensorRT-LLM 0.20 and later.

Fields that the C++ backend would accept and not honour are refused here by name.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from openai_bls.core import word_lists
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams

Arrays = dict[str, np.ndarray[Any, Any]]

GUIDE_TYPES = {"json_schema": "json_schema", "regex": "regex", "ebnf": "ebnf_grammar"}
"""`Grammar.kind` → `guided_decoding_guide_type`. The backend knows no other (but `json`, without a guide)."""

MAX_TOP_K = 1024
"""The sampling kernels take a larger one for this."""

# What a field of `admission.ALL_FIELDS` needs the model to declare. `min_p` is none of them: `runtime_top_p_min` is a
# lower bound for a top_p that shrinks.
_INPUTS = {
    "temperature": ("temperature",),
    "top_p": ("runtime_top_p",),
    "top_k": ("runtime_top_k",),
    "seed": ("seed",),
    "repetition_penalty": ("repetition_penalty",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "logit_bias": ("embedding_bias",),
    "stop_token_ids": ("end_id", "stop_words_list"),
    "stop_words": ("stop_words_list",),
    "bad_words": ("bad_words_list",),
    "min_tokens": ("min_tokens",),
    "logprobs": ("return_log_probs",),
    "grammar": ("guided_decoding_guide_type", "guided_decoding_guide"),
}
REQUIRED_INPUTS = (
    "input_ids",
    "input_lengths",
    "request_output_len",
    "end_id",
    "runtime_top_k",
    "runtime_top_p",
    "temperature",
    "seed",
    "streaming",
    "stop",
)
"""Inputs without which a model cannot be used at all."""

_NEUTRAL = SamplingParams()
_CHANGE_LOGPROBS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")


def supported(declared: frozenset[str]) -> tuple[str, ...]:
    """The request fields that a model with these inputs can be asked for."""
    return tuple(field for field, inputs in _INPUTS.items() if declared.issuperset(inputs))


def refusal(request: GenerationRequest) -> str | None:
    """Reason why the C++ backend cannot honour a request that TensorRT-LLM could, with the field; None if it can."""
    sampling = request.sampling
    if sampling.top_k > MAX_TOP_K:
        return f"top_k is {sampling.top_k}: at most {MAX_TOP_K} is supported by this engine, and 0 for all tokens"
    if request.min_tokens and request.stop_words:
        return "min_tokens with stop_words is not supported by this engine: a stop word ends the output at once"
    if request.logprobs is not None:
        changed = [name for name in _CHANGE_LOGPROBS if getattr(sampling, name) != getattr(_NEUTRAL, name)]
        changed += [name for name in ("grammar", "bad_words", "min_tokens") if getattr(request, name)]
        if sampling.temperature not in (0.0, 1.0):
            changed.append("temperature")
        if changed:
            # Its log-probabilities are taken after all of these, ours are reported as the model's own.
            return f"logprobs with {', '.join(changed)} is not supported by this engine: it would change them"
    return None


def end_id(request: GenerationRequest) -> int | None:
    """The one end token that the contract has; the other `stop_token_ids` go as stop words."""
    return request.stop_token_ids[0] if request.stop_token_ids else None


def encode(request: GenerationRequest, info: EngineInfo, declared: frozenset[str]) -> Arrays:
    """The input tensors, all with a batch dimension of 1, of a request that has not been refused."""
    prompt = np.array([request.prompt_token_ids], dtype=np.int32)
    arrays: Arrays = {
        "input_ids": prompt,
        "input_lengths": _int(prompt.shape[1]),
        "request_output_len": _int(request.max_tokens),
        "streaming": _bool(True),
        **_sampling(request.sampling, info),
        **_words(request),
    }
    end = end_id(request)
    if end is not None:
        arrays["end_id"] = _int(end)
    pad = end if info.pad_token_id is None else info.pad_token_id
    if pad is not None and "pad_id" in declared:
        arrays["pad_id"] = _int(pad)
    if "exclude_input_in_output" in declared:
        arrays["exclude_input_in_output"] = _bool(True)
    if request.min_tokens:
        arrays["min_tokens"] = _int(request.min_tokens)
    if request.logprobs is not None:
        arrays["return_log_probs"] = _bool(True)
    if request.grammar is not None:
        arrays["guided_decoding_guide_type"] = _text(GUIDE_TYPES[request.grammar.kind])
        arrays["guided_decoding_guide"] = _text(request.grammar.text)
    return arrays


def stop_arrays() -> Arrays:
    """The input tensors of a stop request: the live request with its Triton request id ends."""
    # The values of all but `stop` are not looked at.
    return {
        "input_ids": np.zeros((1, 1), dtype=np.int32),
        "input_lengths": _int(1),
        "request_output_len": _int(1),
        "stop": _bool(True),
    }


def _sampling(sampling: SamplingParams, info: EngineInfo) -> Arrays:
    greedy = sampling.temperature == 0
    arrays: Arrays = {
        # A temperature counts only beside top_k or top_p; top_k 1 is greedy, and 0 takes all.
        "runtime_top_k": _int(1 if greedy else sampling.top_k),
        "runtime_top_p": _float(1.0 if greedy else sampling.top_p),
        "temperature": _float(1.0 if greedy else sampling.temperature),
    }
    if not greedy:
        # Without one it is 0 for every request, and all answers to a prompt are the same.
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        arrays["seed"] = np.array([[seed]], dtype=np.uint64)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        value = getattr(sampling, name)
        if value != getattr(_NEUTRAL, name):
            arrays[name] = _float(value)
    if sampling.logit_bias:
        bias = np.zeros((1, info.vocab_size), dtype=np.float32)
        for token_id, value in sampling.logit_bias.items():
            bias[0, token_id] = value
        arrays["embedding_bias"] = bias
    return arrays


def _words(request: GenerationRequest) -> Arrays:
    stop = [*((token_id,) for token_id in request.stop_token_ids[1:]), *request.stop_words]
    arrays = {}
    for name, words in (("stop_words_list", stop), ("bad_words_list", list(request.bad_words))):
        if words:
            arrays[name] = word_lists.encode(words)[None]
    return arrays


def _int(value: int) -> np.ndarray[Any, Any]:
    return np.array([[value]], dtype=np.int32)


def _float(value: float) -> np.ndarray[Any, Any]:
    return np.array([[value]], dtype=np.float32)


def _bool(value: bool) -> np.ndarray[Any, Any]:
    return np.array([[value]], dtype=np.bool_)


def _text(value: str) -> np.ndarray[Any, Any]:
    return np.array([[value.encode()]], dtype=np.object_)
