"""Requests of ours in the terms of vLLM's `SamplingParams`, and what vLLM cannot do as the others do."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.core.engine_types import EngineInfo, GenerationRequest

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0
"""vLLM raises smaller temperatures above 0 to the first and refuses larger ones than the second."""
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1024
"""Sizes of the buffers of vLLM's second model runner, which fails whole when one is exceeded."""
_NO_SEED = (1 << 64) - 1
"""Seed that is -1 in 64 bits, which vLLM takes for none."""

FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("stop_token_ids", "stop_words", "bad_words", "min_tokens", "allowed_token_ids", "logprobs", "prompt_logprobs"),
)
"""Fields of requests that this engine honours; some as the model has them, which `engine_info` decides."""

GRAMMAR_EXCLUDES = ("logprobs", "bad_words", "allowed_token_ids")
"""Fields that vLLM does otherwise under a grammar: its log-probabilities are taken after the grammar's mask, and where
one of the others forbids all that the grammar allows, it samples any token."""

SPECULATIVE_REFUSED = frozenset({"min_p", "logit_bias", "bad_words", "min_tokens", "allowed_token_ids", "seed"})
"""Fields that vLLM ignores, or has not proved, while it drafts."""


class Runner(msgspec.Struct, frozen=True):
    """Model runner that vLLM has chosen for the loaded model."""

    second: bool = False
    """vLLM's second model runner, with buffers of fixed sizes and seeds of 63 bits and a sign."""


def refusal(request: GenerationRequest, info: EngineInfo, runner: Runner) -> str | None:
    """Refusal of a request that `capabilities.refusal` lets pass, naming the field; None if there is none."""
    params = request.sampling
    temperature = params.temperature
    if temperature and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        return (
            f"temperature is {temperature}: the engine {info.engine} takes 0, which is greedy, or a number from "
            f"{MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}"
        )
    if params.seed == _NO_SEED:
        return f"seed is {params.seed}: the engine {info.engine} takes every smaller one"
    if not request.max_tokens and request.prompt_logprobs is not None:
        length = len(request.prompt_token_ids)
        if length >= info.max_model_len:
            return (
                f"prompt_logprobs of a prompt with {length} tokens are not supported by the engine {info.engine}: it "
                f"needs room for one more token (max_model_len is {info.max_model_len})"
            )
    return _buffers(request, info) if runner.second else None


def _buffers(request: GenerationRequest, info: EngineInfo) -> str | None:
    # A grammar adds the tokenizer's end token.
    stops = len(request.stop_token_ids) + (request.grammar is not None)
    sizes = (
        ("logit_bias", len(request.sampling.logit_bias), MAX_LOGIT_BIAS, "tokens"),
        ("allowed_token_ids", len(request.allowed_token_ids), MAX_ALLOWED_TOKEN_IDS, "tokens"),
        ("stop_token_ids", stops if request.min_tokens else 0, MAX_STOP_TOKEN_IDS, "tokens"),
        ("bad_words", len(request.bad_words), MAX_BAD_WORDS, "words"),
        ("bad_words", sum(map(len, request.bad_words)), MAX_BAD_WORD_TOKENS, "tokens in all"),
    )
    for field, size, most, unit in sizes:
        if size > most:
            return f"{field} has {size} {unit}: the engine {info.engine} takes at most {most}"
    return None


def sampling_params(request: GenerationRequest, info: EngineInfo, runner: Runner) -> dict[str, Any]:
    """Fields of vLLM's `SamplingParams` but for `output_kind`; `stop_words` are left to `deltas`.

    Without `max_tokens` one token is sampled and dropped: vLLM computes no prompt without one.
    """
    params = request.sampling
    values: dict[str, Any] = {
        "temperature": params.temperature,
        "max_tokens": request.max_tokens or 1,
        "ignore_eos": True,
        "detokenize": False,
        "skip_clone": True,
    }
    if params.temperature:
        values["top_p"] = params.top_p
        values["top_k"] = params.top_k if params.top_k < info.vocab_size else 0
        values["min_p"] = params.min_p
        if params.seed is not None:
            signed = runner.second and params.seed >= 1 << 63
            values["seed"] = params.seed - (1 << 64) if signed else params.seed
    for field in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        values[field] = getattr(params, field)
    if params.logit_bias:
        values["logit_bias"] = params.logit_bias
    if request.stop_token_ids:
        values["stop_token_ids"] = list(request.stop_token_ids)
        values["min_tokens"] = request.min_tokens
    if request.allowed_token_ids:
        values["allowed_token_ids"] = list(request.allowed_token_ids)
    if request.bad_words:
        # What vLLM itself makes of `bad_words`, which are texts, with a tokenizer.
        values["_bad_words_token_ids"] = [list(word) for word in request.bad_words]
    if request.logprobs is not None:
        values["logprobs"] = request.logprobs
    if request.prompt_logprobs is not None:
        values["prompt_logprobs"] = request.prompt_logprobs
    if request.kv_transfer_params is not None:
        values["extra_args"] = {"kv_transfer_params": request.kv_transfer_params}
    return values
