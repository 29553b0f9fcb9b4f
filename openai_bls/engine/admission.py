"""Whether an engine can honour a request, found out before the engine sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from openai_bls.messages import EngineInfo, GenerationRequest, SamplingParams

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")
_REQUEST_FIELDS = ("stop_token_ids", "stop_words", "bad_words")
ALL_FIELDS = (*_SAMPLING_FIELDS, *_REQUEST_FIELDS)
"""Every optional field an engine may honour."""

ENGINE_FAILED = "The engine failed; the request cannot be completed."
"""For the client's eyes; the cause is in the log."""

_DEFAULT_SAMPLING = SamplingParams()


def refusal(request: GenerationRequest, info: EngineInfo) -> str | None:
    """Why the engine described by `info` cannot honour `request`, naming the field at fault; None if it can."""
    return (
        _lengths(request, info)
        or _sampling(request.sampling)
        or _words(request, info.vocab_size)
        or _support(request, info)
    )


def _lengths(request: GenerationRequest, info: EngineInfo) -> str | None:
    prompt = request.prompt_token_ids
    if not prompt:
        return "prompt_token_ids is empty: a prompt has at least one token"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}: at least 1 is needed"
    total = len(prompt) + request.max_tokens
    if total > info.max_model_len:
        return (
            f"This model's maximum context length is {info.max_model_len} tokens. However, you requested {total} "
            f"tokens ({len(prompt)} in the prompt, max_tokens={request.max_tokens} for the completion)."
        )
    return _ids("prompt_token_ids", prompt, info.vocab_size)


def _ids(field: str, ids: Iterable[int], vocab_size: int) -> str | None:
    low, high = min(ids), max(ids)
    if low >= 0 and high < vocab_size:
        return None
    bad = low if low < 0 else high
    return f"{field} holds {bad}, which is not in the vocabulary of {vocab_size} tokens"


def _sampling(params: SamplingParams) -> str | None:
    # Written so that NaN fails every comparison.
    if not (params.temperature >= 0 and math.isfinite(params.temperature)):
        return f"temperature is {params.temperature}: a number from 0 is needed"
    if not 0 < params.top_p <= 1:
        return f"top_p is {params.top_p}: a number above 0 and up to 1 is needed"
    if params.top_k < 0:
        return f"top_k is {params.top_k}: 0 (off) or more is needed"
    if not 0 <= params.min_p <= 1:
        return f"min_p is {params.min_p}: a number from 0 to 1 is needed"
    if params.seed is not None and not 0 <= params.seed < 1 << 64:
        return f"seed is {params.seed}: an unsigned 64-bit number is needed"
    return None


def _words(request: GenerationRequest, vocab_size: int) -> str | None:
    if request.stop_token_ids:
        problem = _ids("stop_token_ids", request.stop_token_ids, vocab_size)
        if problem:
            return problem
    for field in ("stop_words", "bad_words"):
        for word in getattr(request, field):
            if not word:
                return f"{field} holds an empty word"
            problem = _ids(field, word, vocab_size)
            if problem:
                return problem
    return None


def _support(request: GenerationRequest, info: EngineInfo) -> str | None:
    for field in _REQUEST_FIELDS:
        if getattr(request, field) and field not in info.supported:
            return f"{field} is not supported by the engine {info.engine}"
    for field in _SAMPLING_FIELDS:
        changed = getattr(request.sampling, field) != getattr(_DEFAULT_SAMPLING, field)
        if changed and field not in info.supported:
            return f"{field} is not supported by the engine {info.engine}"
    return None
