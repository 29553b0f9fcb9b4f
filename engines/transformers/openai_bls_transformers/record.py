"""Record of the embedded engine in engine.json."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from openai_bls.core.manifest import AnswerRecord, EngineRecord, Positive

Quantization = Literal["", "fp8"]
"""Quantization that the engine makes; empty is none beyond the checkpoint's own."""


class QuantDistance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distance of a quantized model from itself before, over the tokens of one text."""

    tokens: Positive
    mean: float
    """Mean difference of a token's log-probability, without its sign."""
    max: float
    """Largest difference."""
    same_greedy: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """Share of the places where the likeliest token is the same."""


class SelfTestRecord(AnswerRecord, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Outcome of the embedded engine's self-test: what passed it, where, and answers to compare with at each load."""

    versions: dict[str, str]
    """Versions of torch and transformers, by package."""
    runner: str
    """Name of the runner that passed, one of `embedded.runners.runner_choice`."""
    attention: str
    """Attention that it ran with."""
    shared_steps: bool = True
    """Sequences shared forward passes."""
    kv_cache_dtype: str = "auto"
    """`fp8`, or `auto` for the weights' own type."""
    plain_experts: bool = False
    """A mixture of experts ran by transformers' own code, not by fused kernels."""
    quant_distance: QuantDistance | None = None
    """Distance from the checkpoint's own weights, where the build quantized them and could compare."""
    fp8_noise: float | None = None
    """Difference of log-probabilities that rounding activations or the KV cache to FP8 makes (median), as a share of
    what sets the likeliest token apart from the mean; None without such rounding. Above 0.1 no answers are recorded."""
    replay_tolerance: float | None = None
    """Difference of log-probabilities that is taken for rounding at a load; None: by the data type."""


class EmbeddedRecord(EngineRecord, frozen=True, forbid_unknown_fields=True):
    """Build record of the embedded engine."""

    quant: Quantization = ""
    """Quantization of linear layers' weights, made at each load."""
    self_test: SelfTestRecord | None = None
    """Outcome of the self-test; None if the build left it to the load."""
