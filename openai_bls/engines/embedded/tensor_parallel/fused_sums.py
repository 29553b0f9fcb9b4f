"""Sums over the ranks that are computed with the residual adds and norms behind them (see `gpu.fused_layers`)."""

from __future__ import annotations

from typing import Any

from openai_bls.engines.embedded.gpu.fused_layers import FusedNorm, norms_after
from openai_bls.engines.embedded.tensor_parallel.shards import SummedLinear


def fuse(model: Any) -> int:
    """Let fused norms sum what the layers before them give; returns how many do. It may be done again."""
    count = 0
    for layer, norm_after in norms_after(model):
        for module, norm in (
            (layer.self_attn, layer.post_attention_layernorm.forward),
            (layer.mlp, norm_after.forward),
        ):
            summed = [part for part in module.modules() if isinstance(part, SummedLinear)]
            if "forward" not in layer.__dict__ or not isinstance(norm, FusedNorm) or len(summed) != 1:
                continue
            norm.add_norm = summed[0].group.add_norm
            summed[0].is_summed_later = True
            count += 1
    return count
