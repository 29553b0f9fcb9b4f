"""Eager attention under continuous batching that caps its scores where a model asks for that (Gemma 2).

transformers' own takes the cap and does nothing with it. A sequence that is not finite spoils no other
(`attention_isolation`).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.eager_paged import eager_paged_attention_forward

from openai_bls_transformers.cache_argument import UPDATED_BY_LAYERS
from openai_bls_transformers.model.attention_isolation import IsolatedCache


def install() -> None:
    """Let every model of this process that is eager under continuous batching use this. Safe to call twice."""
    AttentionInterface.register("paged|eager", _attention)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over query [1, heads, queries, size]; returns [1, queries, heads, size] and the weights."""
    if kwargs.get("cache") is None:
        raise ValueError("eager attention under continuous batching needs the paged cache")
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError("eager attention under continuous batching has no position_bias")
    isolated = kwargs["cache"] = IsolatedCache(kwargs["cache"])
    cap = kwargs.get("softcap")
    if cap is None:
        if UPDATED_BY_LAYERS:  # which transformers' function takes for granted
            del kwargs["cache"]
            key, value = isolated.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
        output, weights = eager_paged_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs)
        return isolated.spread(output, attention_mask), weights
    del kwargs["cache"]
    if hasattr(isolated, "layer_to_allocator"):
        indices: dict[str, Any] = {"kwargs": kwargs}
    else:  # 5.17
        indices = {name: kwargs[name] for name in ("read_index", "write_index")}
    key, value = isolated.update(key_states=key, value_states=value, layer_idx=module.layer_idx, **indices)
    if key.dim() == 3:  # 5.17: [tokens, heads, size]
        key, value = key.transpose(0, 1)[None], value.transpose(0, 1)[None]
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.tanh(query @ key.transpose(2, 3) * (scaling / cap)) * cap
    mask = attention_mask
    if isinstance(mask, dict):  # 5.17
        mask = mask["sliding_attention" if module.sliding_window else "full_attention"]
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    output = (weights @ value).transpose(1, 2).contiguous()
    return isolated.spread(output, attention_mask), weights
