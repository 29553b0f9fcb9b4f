"""Name of the cache among a model's arguments, and who updates the paged cache of continuous batching.

Up to transformers 5.23 a layer passes the paged cache to its attention function, which adds the step's keys and values.
From 5.24 on the layer adds them itself. Our attention functions read keys and values where they lie, or differ in how
they add them, so under continuous batching layers pass the cache on as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationMixin

UPDATED_BY_LAYERS = "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
"""Layers update a paged cache, as from 5.24 on, unless `pass_on` was called; and the cache is called `cache`."""
NAME = "cache" if UPDATED_BY_LAYERS else "past_key_values"
"""Argument of a model for its cache, but for Mamba's up to 5.23."""
NAMES = (NAME,) if UPDATED_BY_LAYERS else (NAME, "cache_params")
"""Arguments under which models take and give their cache."""


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """The cache among a model's arguments; None if there is none."""
    return next((arguments[name] for name in NAMES if name in arguments), None)


def pass_on(cache: Any, attention: str) -> None:
    """Let layers leave the update of a paged cache to their attention function. Idempotent.

    Args:
        cache: the `PagedAttentionCache` that the model gets.
        attention: the model's implementation of attention; that of flash-attn is transformers' own.
    """
    if not UPDATED_BY_LAYERS or "flash_attention" in attention:
        return

    def passed_on(
        key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kwargs["cache"] = cache
        return key_states, value_states

    cache.update = passed_on


def update(cache: Any, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Add keys and values to a paged cache; returns those of all sequences of the step."""
    found: tuple[torch.Tensor, torch.Tensor] = type(cache).update(cache, **arguments)
    return found
