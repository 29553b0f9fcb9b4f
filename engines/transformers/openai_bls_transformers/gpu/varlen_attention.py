"""Attention of packed sequences over copies of their keys and values: the flash attention inside PyTorch.

For machines on which our kernels do not compile.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from openai_bls_transformers.attention_spec import refuse_features
from openai_bls_transformers.cache_argument import update
from openai_bls_transformers.gpu import attention_trials

REFUSAL = "this attention has no {}: set the engine's attention to sdpa or eager"


def of_full_layers(value: Any) -> Any:
    """What continuous batching has for the layers with full attention, of what it may have for each kind."""
    return value["full_attention"] if isinstance(value, dict) else value


def _packed(states: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, size] to [tokens, heads, size]."""
    return states[0].transpose(0, 1)


def varlen(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as in `paged_attention`, over copies of the keys and values."""
    refuse_features(kwargs, REFUSAL)
    assert flash is not None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    key_ends = of_full_layers(kwargs["cu_seq_lens_k"])
    longest = _longest(kwargs, "k")
    cache, indices = kwargs["cache"], {name: kwargs[name] for name in ("read_index", "write_index")}
    if hasattr(cache, "layer_to_allocator"):
        key, value = update(cache, key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
        k, v = _packed(key), _packed(value)
    else:  # 5.17
        k, v = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, **indices)
    q = _packed(query).contiguous()
    out = flash(
        q, k.contiguous(), v.contiguous(), kwargs["cu_seq_lens_q"], key_ends, _longest(kwargs, "q"), longest, scale
    )
    return out.unsqueeze(0), None


def _longest(kwargs: dict[str, Any], kind: str) -> int:
    """Upper bound on the queries or keys of one sequence."""
    name = f"max_length_{kind}"
    return int(of_full_layers(kwargs[name] if name in kwargs else kwargs[f"max_seqlen_{kind}"]))


def _find_flash() -> attention_trials.Flash | None:
    """PyTorch's flash attention for packed sequences, whose arguments differ from release to release."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    fixed: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known:
        fixed["enable_gqa"] = True

    def packed_flash(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        query_ends: torch.Tensor,
        key_ends: torch.Tensor,
        most_queries: int,
        most_keys: int,
        scale: float,
    ) -> torch.Tensor:
        """See `attention_trials.Flash`."""
        if "scale" in known:
            fixed["scale"] = scale
        elif abs(scale * q.shape[-1] ** 0.5 - 1) > 1e-6:
            q = q * (scale * q.shape[-1] ** 0.5)
        out: torch.Tensor = varlen_attn(q, k, v, query_ends, key_ends, most_queries, most_keys, **fixed)
        return out

    return packed_flash


flash = _find_flash()
