"""Check of a request against the capabilities of an engine, before the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_type_hints

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, Grammar, Range, SamplingParams

# What every request has, or what is none of the engine's business.
_REQUIRED = {"request_id", "prompt_token_ids", "max_tokens", "sampling", "owner"}
_REQUEST_FIELDS = tuple(name for name in GenerationRequest.__struct_fields__ if name not in _REQUIRED)
ALL_FIELDS = (*SamplingParams.__struct_fields__, *_REQUEST_FIELDS)
"""Every optional field an engine may honour. Each engine lists those that it does, so that a new one is refused."""

MAX_LOGPROBS = 20
"""Most likeliest tokens per position that an engine returns."""

ENGINE_FAILED = "The engine failed; the request cannot be completed."
"""Message of a failed request to the client; the cause is in the log."""

_DEFAULT_SAMPLING = SamplingParams()
RANGES: dict[str, Range] = {
    name: mark
    for name, kind in get_type_hints(SamplingParams, include_extras=True).items()
    for mark in getattr(kind, "__metadata__", ())
}
"""Sampling parameter → its numbers."""
_DEFAULT_REQUEST = GenerationRequest(request_id=0, prompt_token_ids=[0], max_tokens=1)


def refusal(request: GenerationRequest, info: EngineInfo) -> str | None:
    """Refusal of `request` by the engine that `info` describes, naming the field; None if it can be honoured."""
    return (
        _lengths(request, info)
        or _support(request, info)
        or _sampling(request.sampling, info)
        or _words(request, info.vocab_size)
        or _outputs(request, info)
        or _images(request, info)
    )


def _lengths(request: GenerationRequest, info: EngineInfo) -> str | None:
    prompt = request.prompt_token_ids
    if not prompt:
        return "prompt_token_ids is empty: a prompt has at least one token"
    if request.max_tokens < 0:
        return f"max_tokens is {request.max_tokens}: at least 0 is needed"
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


def _sampling(params: SamplingParams, info: EngineInfo) -> str | None:
    for field in SamplingParams.__struct_fields__:
        value = getattr(params, field)
        if value == getattr(_DEFAULT_SAMPLING, field):
            continue
        if field not in info.supported:
            return f"{field} is not supported by the engine {info.engine}"
        values = value.values() if isinstance(value, dict) else (value,)
        if field in RANGES and (bad := RANGES[field].first_outside(values)) is not None:
            return f"{field} is {bad}: {RANGES[field]} is needed"
    return _ids("logit_bias", params.logit_bias, info.vocab_size) if params.logit_bias else None


def _words(request: GenerationRequest, vocab_size: int) -> str | None:
    for field in ("stop_token_ids", "allowed_token_ids"):
        ids = getattr(request, field)
        if ids and (problem := _ids(field, ids, vocab_size)):
            return problem
    for field in ("stop_words", "bad_words"):
        for word in getattr(request, field):
            if not word:
                return f"{field} holds an empty word"
            problem = _ids(field, word, vocab_size)
            if problem:
                return problem
    allowed = request.allowed_token_ids
    if len(request.bad_words) + len(request.stop_token_ids) >= (len(allowed) or vocab_size):
        last = {word[-1] for word in request.bad_words}.union(request.stop_token_ids if request.min_tokens else ())
        if allowed and last.issuperset(allowed):
            return (
                "allowed_token_ids may all be forbidden at once, by bad_words or min_tokens: some token has to be left"
            )
        if len(last) >= vocab_size:
            return "bad_words may forbid every token of the vocabulary at once: some token has to be left"
    return None


def _outputs(request: GenerationRequest, info: EngineInfo) -> str | None:
    """Fields that ask for outputs beyond, or instead of, the usual tokens."""
    if not 0 <= request.min_tokens <= request.max_tokens:
        return f"min_tokens is {request.min_tokens}: a number from 0 to max_tokens, {request.max_tokens}, is needed"
    for field in ("logprobs", "prompt_logprobs"):
        value = getattr(request, field)
        if value is not None and not 0 <= value <= info.max_logprobs:
            return f"{field} is {value}: a number from 0 to {info.max_logprobs} is needed"
    if request.grammar is not None and (problem := _grammar(request, request.grammar, info)) is not None:
        return problem
    if request.lora_name is not None and request.lora_name not in info.lora_names:
        known = ", ".join(info.lora_names)
        return f"lora_name is {request.lora_name!r}, which is not an adapter of this engine: it has {known}"
    return _pooling(request, info)


_POOLINGS: dict[str, tuple[str, ...]] = {
    "generate": ("last", "mean"),
    "embeddings": ("embed",),
    **dict.fromkeys(("score", "classify", "reward"), ("classify",)),
}
"""Task of an engine → the ways of pooling that it may have."""


def _pooling(request: GenerationRequest, info: EngineInfo) -> str | None:
    if request.pooling is None:
        return None if info.task == "generate" else f"the engine {info.engine} generates nothing with this model"
    if request.max_tokens:
        return f"pooling needs max_tokens 0, not {request.max_tokens}: nothing is generated"
    if request.pooling not in _POOLINGS[info.task]:
        return f"pooling is {request.pooling}: this model's is {' or '.join(_POOLINGS[info.task])}"
    size, sizes = request.dimensions, info.matryoshka_dimensions
    if size is not None and not (size in sizes if sizes else 1 <= size <= info.embedding_size):
        return f"dimensions is {size}: embeddings of this model have {info.embedding_size}"
    types_from = request.compressed_token_type_ids
    if types_from is not None and not 0 <= types_from <= len(request.prompt_token_ids):
        return f"compressed_token_type_ids is {types_from}, which is no place of the prompt"
    return None


def _grammar(request: GenerationRequest, grammar: Grammar, info: EngineInfo) -> str | None:
    if info.grammar_kinds and grammar.kind not in info.grammar_kinds:
        known = ", ".join(info.grammar_kinds)
        return f"grammar of the kind {grammar.kind} is not supported by the engine {info.engine}: it takes {known}"
    for field in info.grammar_excludes:
        if getattr(request, field) != getattr(_DEFAULT_REQUEST, field):
            return f"{field} together with a grammar is not supported by the engine {info.engine}"
    return None


def _images(request: GenerationRequest, info: EngineInfo) -> str | None:
    if request.media is None:
        return None
    if len(request.media.images) > info.max_images:
        return f"the prompt holds {len(request.media.images)} images: this model takes at most {info.max_images}"
    if request.pooling is not None:
        return "pooling is not supported for a prompt with images"
    return None


def _support(request: GenerationRequest, info: EngineInfo) -> str | None:
    supported = info.supported
    for field in _REQUEST_FIELDS:
        if field not in supported and getattr(request, field) != getattr(_DEFAULT_REQUEST, field):
            return f"{field} is not supported by the engine {info.engine}"
    return None
