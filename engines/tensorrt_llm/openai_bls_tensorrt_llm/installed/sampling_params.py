"""`SamplingParams` of a request, in the installed version's terms."""

from __future__ import annotations

import secrets
from typing import Any

from openai_bls.core.engine_types import Grammar, SamplingParams
from openai_bls_tensorrt_llm.installed import speculation, versions
from openai_bls_tensorrt_llm.installed.interface import LlmOptions, Sampling
from openai_bls_tensorrt_llm.installed.module import TensorRtLlm

_GRAMMAR_FIELDS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "lark": "grammar",
    "structural_tag": "structural_tag",
}
"""`Grammar.kind` → the field of `GuidedDecodingParams`."""

# Fields that change the scores that tokens are drawn by: of `SamplingParams`, and of `Sampling`.
_SCORES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
_LIMITS = ("grammar", "bad_words", "min_tokens")


def sampling_params(package: TensorRtLlm, options: LlmOptions, sampling: Sampling) -> Any:
    """A `tensorrt_llm.SamplingParams`.

    Raises:
        ValueError: this version, or this model as it was loaded, cannot honour a field; the message begins with it.
    """
    _refuse(package, options, sampling)
    values: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "end_id": _end_id(sampling),
        "pad_id": _pad_id(sampling),
        "ignore_eos": sampling.end_id is None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        # Text is made elsewhere.
        "detokenize": False,
    }
    values |= _drawing(sampling)
    values |= _changes(sampling.params, sampling.vocab_size)
    if sampling.min_tokens:
        values["min_tokens"] = sampling.min_tokens
    if sampling.logprobs is not None:
        # 0 is nothing there, not even the token's own.
        values["logprobs"] = max(1, sampling.logprobs)
    if sampling.grammar is not None:
        values["guided_decoding"] = _guided_decoding(package, sampling.grammar)
    singles = [word[0] for word in sampling.bad_words if len(word) == 1]
    if singles:
        values["bad_token_ids"] = singles
    params = package.make(package.name("tensorrt_llm.SamplingParams"), **values)
    _add_bad_words(params, [list(word) for word in sampling.bad_words if len(word) > 1])
    return params


def _refuse(package: TensorRtLlm, options: LlmOptions, sampling: Sampling) -> None:
    if sampling.top_k > versions.MAX_TOP_K:
        raise ValueError(f"top_k: at most {versions.MAX_TOP_K} with TensorRT-LLM, not {sampling.top_k}")
    if sampling.logprobs is not None:
        if options.flow == "tensorrt" and not options.gather_generation_logits:
            raise ValueError("logprobs: this engine was built without --gather-logits")
        most = versions.max_logprobs(options.flow, package.version)
        if sampling.logprobs > most:
            raise ValueError(
                f"logprobs: at most {most} with TensorRT-LLM {package.version_text}, not {sampling.logprobs}"
            )
        changed = _changed_scores(sampling) if _by_the_cpp_sampler(package, options) else []
        if changed:
            raise ValueError(
                f"logprobs with {', '.join(changed)} is not supported by TensorRT-LLM {package.version_text} in the "
                "PyTorch flow: it would change them"
            )
    for token_id in sampling.params.logit_bias:
        if not 0 <= token_id < sampling.vocab_size:
            raise ValueError(f"logit_bias: there is no token {token_id}; the vocabulary has {sampling.vocab_size}")
    drafting = speculation.speculation(options.extra_llm_api_options, package.version)
    if drafting is not None and drafting.greedy and sampling.params.temperature != 0 and sampling.top_k != 1:
        raise ValueError(
            f"temperature: 0 is needed, for TensorRT-LLM {package.version_text} decodes greedily with the speculative "
            f"decoding that this model was loaded with ({drafting.decoding_type})"
        )
    grammar = sampling.grammar
    if grammar is None:
        return
    backend = options.guided_decoding_backend
    kinds = versions.grammar_kinds(options.flow, backend, package.version)
    if grammar.kind not in kinds:
        has = f"{backend} with {', '.join(kinds)}" if kinds else "none"
        raise ValueError(f"grammar: {grammar.kind} is not what this model was loaded with: {has}")


def _by_the_cpp_sampler(package: TensorRtLlm, options: LlmOptions) -> bool:
    """True if log-probabilities are of the distribution that is sampled from, not of the model's own logits.

    TRTLLMSampler (pyexecutor/sampler.py) has them from the C++ decoder, without `normalize_log_probs`. For TensorRT
    engines TensorRT-LLM computes them from the logits.
    """
    return options.flow == "pytorch" and versions.cpp_sampler(package.version)


def _changed_scores(sampling: Sampling) -> list[str]:
    """Fields that change the scores that tokens are drawn by."""
    params, neutral = sampling.params, SamplingParams()
    names = [name for name in _SCORES if getattr(params, name) != getattr(neutral, name)]
    names += [name for name in _LIMITS if getattr(sampling, name)]
    if params.temperature not in (0.0, 1.0):
        names.append("temperature")
    return names


def _end_id(sampling: Sampling) -> int:
    """Without a tokenizer there must be one; with `ignore_eos` it is passed over."""
    if sampling.end_id is not None:
        return sampling.end_id
    return sampling.pad_id if sampling.pad_id is not None else 0


def _pad_id(sampling: Sampling) -> int:
    return sampling.pad_id if sampling.pad_id is not None else _end_id(sampling)


def _drawing(sampling: Sampling) -> dict[str, Any]:
    """Fields of sampling itself: temperature, top_p, top_k, min_p and seed."""
    params = sampling.params
    if params.temperature == 0:
        # A temperature of 0 is out of range in the C++ decoder.
        return {"top_k": 1}
    values: dict[str, Any] = {
        "temperature": params.temperature,
        # Said even where it is off: with neither top_p nor top_k, the temperature is passed over and it is greedy.
        "top_p": params.top_p,
        # Without one all requests have the seed 0, or draw from one generator while the model drafts (issue 19487).
        "seed": secrets.randbits(63) if params.seed is None else params.seed,
    }
    if sampling.top_k:
        values["top_k"] = sampling.top_k
    if params.min_p:
        values["min_p"] = params.min_p
    return values


def _changes(params: SamplingParams, vocab_size: int) -> dict[str, Any]:
    """Fields that change the logits before sampling: penalties and bias."""
    values: dict[str, Any] = {}
    if params.repetition_penalty != 1:
        values["repetition_penalty"] = params.repetition_penalty
    if params.presence_penalty:
        values["presence_penalty"] = params.presence_penalty
    if params.frequency_penalty:
        values["frequency_penalty"] = params.frequency_penalty
    if params.logit_bias:
        import torch

        bias = torch.zeros(vocab_size, dtype=torch.float32)
        for token_id, change in params.logit_bias.items():
            bias[token_id] = change
        values["embedding_bias"] = bias
    return values


def _guided_decoding(package: TensorRtLlm, grammar: Grammar) -> Any:
    found = package.name("tensorrt_llm.llmapi.GuidedDecodingParams")
    return package.make(found, **{_GRAMMAR_FIELDS[grammar.kind]: grammar.text})


def _add_bad_words(params: Any, words: list[list[int]]) -> None:
    """Words of several tokens.

    `SamplingParams.bad` takes text alone, which LLM has a tokenizer split only where `end_id` is left to it; what comes
    out of that lies in a private field, which is set here.
    """
    if not words:
        return
    if not hasattr(params, "_bad_word_ids"):
        raise ValueError("bad_words: this version of TensorRT-LLM takes no words of several tokens")
    params.bad = []
    params._bad_word_ids = words
