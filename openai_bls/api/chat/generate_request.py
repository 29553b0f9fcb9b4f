"""Answers of the render endpoints: vLLM's `GenerateRequest` and `SamplingParams`, of vLLM 0.26."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.core import engine_types


class StructuredOutputsParams(msgspec.Struct, frozen=True):
    """Format that the output must match."""

    structural_tag: str
    """JSON text of a structural tag, of which every other format is a special case."""


class SamplingParams(engine_types.SamplingParams, frozen=True, omit_defaults=True):
    """Sampling parameters, those at vLLM's defaults left out; the engines' have vLLM's names and defaults."""

    n: int = 1
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool
    continuous_usage_stats: bool


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as token ids, with what is to be done with it."""

    request_id: str
    token_ids: list[int]
    """Token ids of the prompt, exactly those that a generation has."""
    assistant_tokens_mask: list[int] | None = None
    """Always null."""
    token_offsets: list[tuple[int, int]] | None = None
    """Always null."""
    features: dict[str, Any] | None = None
    """Always null: prompts are text."""
    sampling_params: SamplingParams
    model: str | None
    stream: bool
    stream_options: StreamOptions | None = None
    """Null unless `stream` is true."""
    cache_salt: str | None = None
    """Always null."""
    priority: int
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    """Always null."""
