"""Attention on a CPU, in a loop over the sequences of a step.

Continuous batching lays all sequences of a step end to end. transformers' sdpa then lets every query look at the keys
of all of them under a mask, which costs batch size times the work. On a CPU, where calls are cheap, a loop over the
sequences does only the work there is. On a GPU it stays, with sequences that are not finite hidden from the others
(`attention_isolation`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from openai_bls_transformers.attention_spec import other_feature
from openai_bls_transformers.cache_argument import update
from openai_bls_transformers.model.attention_isolation import IsolatedCache


def install() -> None:
    """Let every model of this process that runs under continuous batching with sdpa use this. Safe to call twice.

    Only the name sdpa is open to continuous batching, hence the override; all other uses of it go to the original.
    Releases whose continuous batching takes another way (5.17 does) are not affected.
    """
    AttentionInterface.register("sdpa", _attention)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over query [1, heads, queries, size]; returns [1, queries, heads, size]."""
    cache = kwargs.get("cache")
    output: tuple[torch.Tensor, None]
    if not isinstance(cache, PagedAttentionCache) or attention_mask is None:
        output = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output
    del kwargs["cache"]
    if query.device.type != "cpu" or other_feature(kwargs) is not None:
        isolated = IsolatedCache(cache)
        key, value = isolated.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
        output = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return isolated.spread(output[0], attention_mask), None
    key, value = update(cache, key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    query_ends, key_ends = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
    _, heads, queries, size = query.shape
    groups = heads // key.shape[1]
    result = query.new_empty(1, heads, queries, size)
    for i in range(len(query_ends) - 1):
        q0, q1, k0, k1 = query_ends[i], query_ends[i + 1], key_ends[i], key_ends[i + 1]
        if q0 == q1:  # a row of a draft, which belongs to another sequence
            continue
        q, k, v = query[:, :, q0:q1], key[:, :, k0:k1], value[:, :, k0:k1]
        mask = attention_mask[:, :, q0:q1, k0:k1]
        scale = kwargs.get("scaling")
        if q1 - q0 == 1:
            # The heads that share a key become the queries of one head: no copies of the keys.
            packed = q.reshape(1, heads // groups, groups, size)
            mask = mask.expand(1, 1, groups, -1)
            part = scaled_dot_product_attention(packed, k, v, attn_mask=mask, scale=scale).reshape(1, heads, 1, size)
        else:
            part = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=groups > 1)
        result[:, :, q0:q1] = part
    return result.transpose(1, 2).contiguous(), None
