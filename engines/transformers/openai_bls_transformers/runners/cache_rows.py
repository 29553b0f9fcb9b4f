"""Rows of transformers' dynamic caches: caches of several sequences put together as one batch, and taken apart again.

Sequences of different lengths lie to the right, as in a batch that `generate` gets with padding on the left; what lies
to the left of a sequence is zeros, which the attention mask hides.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import cache_utils

_GROWING = frozenset({"DynamicLayer", "LinearAttentionAndFullAttentionLayer"})
_SLIDING = frozenset({"DynamicSlidingWindowLayer", "LinearAttentionAndSlidingWindowAttentionLayer"})
_FIXED = frozenset({"LinearAttentionLayer", "DummyLayer"})
_PAIR = ("keys", "values")
_STATES = ("conv_states", "recurrent_states")


def can_batch(cache: Any) -> bool:
    """True if the rows of caches like this one are known."""
    return _is_plain(cache) and _kinds(cache) <= _GROWING | _SLIDING | _FIXED


def is_growing(cache: Any) -> bool:
    """True if some layer of `cache` keeps something for every token."""
    return not _is_plain(cache) or not _kinds(cache) <= _FIXED


def can_extend(cache: Any) -> bool:
    """True if `cache` takes a prompt in pieces: every layer has keys and values and nothing else."""
    plain = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}
    return _is_plain(cache) and _kinds(cache) <= plain


def merge(caches: Sequence[Any]) -> Any:
    """One cache with the rows of all; the longest sequence is in the first."""
    merged = copy.copy(caches[0])
    merged.layers = [_merged(layers) for layers in zip(*(cache.layers for cache in caches), strict=True)]
    return merged


def select(cache: Any, rows: torch.Tensor, padding: int) -> Any:
    """A cache with some rows of `cache`, without the `padding` tokens that lie to the left of all of them."""
    selected = copy.copy(cache)
    selected.layers = [_selected(layer, rows, padding) for layer in cache.layers]
    return selected


def _is_plain(cache: Any) -> bool:
    """False for a class of a model's own, which may keep more than its layers."""
    return type(cache) is cache_utils.DynamicCache


def _kinds(cache: Any) -> set[str]:
    return {type(layer).__name__ for layer in cache.layers}


def _merged(layers: Sequence[Any]) -> Any:
    merged = copy.copy(layers[0])
    if torch.is_tensor(getattr(merged, "keys", None)):
        for name in _PAIR:
            parts = [getattr(layer, name) for layer in layers]
            width = max(part.shape[-2] for part in parts)
            padded = [torch.nn.functional.pad(part, (0, 0, width - part.shape[-2], 0)) for part in parts]
            setattr(merged, name, torch.cat(padded))
    for name in _STATES:
        if hasattr(merged, name):
            setattr(merged, name, _joined([getattr(layer, name) for layer in layers]))
    return merged


def _joined(states: Sequence[Any]) -> Any:
    if isinstance(states[0], dict):
        return {key: _joined([state[key] for state in states]) for key in states[0]}
    return torch.cat(list(states)) if torch.is_tensor(states[0]) else states[0]


def _selected(layer: Any, rows: torch.Tensor, padding: int) -> Any:
    selected = copy.copy(layer)
    if torch.is_tensor(getattr(layer, "keys", None)):
        width = layer.keys.shape[-2]
        if type(layer).__name__ in _SLIDING:
            selected.cumulative_length = layer.cumulative_length - padding
            kept = min(width, selected.cumulative_length)
        else:
            kept = width - padding
        for name in _PAIR:
            setattr(selected, name, getattr(layer, name)[rows, :, width - kept :])
    for name in _STATES:
        if hasattr(layer, name):
            setattr(selected, name, _taken(getattr(layer, name), rows))
    return selected


def _taken(state: Any, rows: torch.Tensor) -> Any:
    if isinstance(state, dict):
        return {key: _taken(value, rows) for key, value in state.items()}
    return state[rows] if torch.is_tensor(state) else state
