"""Mixtures of experts by the Triton programs of `expert_programs`.

Only the weights of chosen experts are read. Nothing here waits for the GPU, and all shapes follow from the arguments',
so that a step with these is captured in a CUDA graph.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton

from openai_bls_transformers.gpu import dependent_launch
from openai_bls_transformers.gpu.expert_programs import (
    choose_kernel,
    count_kernel,
    one_down_kernel,
    one_gate_kernel,
    order_kernel,
    products_kernel,
    sum_kernel,
)

FEW_TOKENS = 16
"""Tokens up to which columns are tokens: the fewest columns that tensor cores take."""
_ONE_GATE = 1, 256, 1
_ONE_DOWN = 2, 64, 4
"""Outputs, words at a time and warps of a program for one token."""
_SHARE = 1024
"""Pairs that one program puts in order, unless that makes more than `_MOST_SHARES`."""
_MOST_SHARES = 32


class Clamp(NamedTuple):
    """gpt-oss's clamped SwiGLU: `(up + 1) * gate * sigmoid(alpha * gate)`, of numbers within a limit."""

    alpha: float
    limit: float
    """Upper bound of gates, and bound of the other numbers on both sides."""


class Experts(NamedTuple):
    """Weights of the experts of a layer, with all inputs of an output next to each other."""

    gate_up: torch.Tensor
    """[experts, 2 * inner, size], contiguous; size and inner are even."""
    down: torch.Tensor
    """[experts, size, inner], contiguous."""
    gate_up_bias: torch.Tensor | None = None
    """[experts, 2 * inner], contiguous."""
    down_bias: torch.Tensor | None = None
    """[experts, size], contiguous; with `gate_up_bias` or not at all."""
    interleaved: bool = False
    """Each row of a gate is followed by its partner; else the gate's rows come first."""
    clamp: Clamp | None = None
    """None is `silu(gate) * up`."""


class Tile(NamedTuple):
    """Shape of a program of `products_kernel`."""

    rows: int
    outputs: int
    block: int
    """Inputs at a time."""
    stages: int
    warps: int

    def fitting(self, shared_bytes: int, *, gated: bool) -> Tile:
        """The shape with fewer stages, then with smaller blocks, until a program's blocks take `shared_bytes`."""
        each = 2 * self.block * (self.rows + self.outputs * (2 if gated else 1))
        if each * self.stages <= shared_bytes or self.block == _LEAST_BLOCK:
            return self
        smaller = {"stages": self.stages - 1} if self.stages > _LEAST_STAGES else {"block": self.block // 2}
        return self._replace(**smaller).fitting(shared_bytes, gated=gated)


_NO_GATE: dict[str, Any] = {"alpha": 0.0, "limit": 0.0, "INTERLEAVED": False, "CLAMPED": False}
_LEAST_BLOCK, _LEAST_STAGES = 32, 2
_FEW = Tile(16, 16, 256, 3, 1), Tile(16, 64, 128, 3, 4)
_TILES = {
    8: (Tile(32, 64, 128, 3, 4), Tile(32, 64, 128, 3, 4)),
    32: (Tile(64, 64, 64, 4, 4), Tile(64, 64, 64, 4, 4)),
}
"""Shapes of both products by the most pairs per expert: of 24 the fastest for Qwen3-30B-A3B on an H100, with all
experts chosen and with 24 of them."""
_MANY = Tile(128, 128, 64, 4, 8), Tile(128, 128, 64, 3, 8)


@functools.cache
def _tiles(most: int | None, device: torch.device) -> tuple[Tile, Tile]:
    """Shapes for `most` pairs per expert, 0 for a few tokens or None for any number, as they fit the device."""
    first, second = _FEW if most == 0 else _MANY if most is None else _TILES[most]
    if device.type != "cuda":
        return first, second
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return first.fitting(shared, gated=True), second.fitting(shared, gated=False)


def _tiles_for(tokens: int, top: int, experts: int, device: torch.device) -> tuple[Tile, Tile]:
    if tokens <= FEW_TOKENS:
        return _tiles(0, device)
    return _tiles(next((most for most in _TILES if tokens * top <= most * experts), None), device)


def sizes(top: int, experts: int) -> tuple[int, ...]:
    """Numbers of tokens that have different programs, those for many first, which take longest to compile."""
    return (*(most * experts // top + 1 for most in sorted(_TILES, reverse=True)), FEW_TOKENS + 1, 2, 1)


def choose(
    logits: torch.Tensor, top: int, *, normalized: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top` experts of each token by the softmax of its logits, the likeliest first; of equals the first.

    Args:
        logits: [tokens, experts], contiguous.
        top: experts per token.
        normalized: divide the probabilities by their sum over the chosen experts.
        dtype: data type of the probabilities.

    Returns:
        Probabilities and int64 indices, [tokens, top].
    """
    tokens, experts = logits.shape
    scores = torch.empty(tokens, top, dtype=dtype, device=logits.device)
    chosen = torch.empty(tokens, top, dtype=torch.int64, device=logits.device)
    choose_kernel[(tokens,)](
        logits,
        scores,
        chosen,
        EXPERTS=experts,
        BLOCK=triton.next_power_of_2(experts),
        TOP=top,
        TOP_BLOCK=triton.next_power_of_2(top),
        NORMALIZED=normalized,
        num_warps=1,
        **dependent_launch.options(logits.device),
    )
    return scores, chosen


def takes(x: torch.Tensor, experts: torch.Tensor, scores: torch.Tensor) -> bool:
    """True if these are arguments of `mix`: some contiguous rows in half precision."""
    are_contiguous = all(part.is_contiguous() for part in (x, experts, scores))
    return bool(x.itemsize == 2 and len(x) and are_contiguous and scores.dtype in (x.dtype, torch.float32))


def mix(x: torch.Tensor, experts: Experts, chosen: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Sum of what each token's experts make of it, `down @ (silu(gate @ x) * (up @ x))`, by their scores.

    Args:
        x: [tokens, size], contiguous, in half precision.
        experts: the weights, in the type of `x`.
        chosen: indices [tokens, top], contiguous; no token names one twice.
        scores: [tokens, top], contiguous, in the type of `x` or float32.

    Returns:
        [tokens, size].
    """
    if len(x) == 1:
        return _mix_one(x, experts, chosen, scores)
    count, size, middle = experts.down.shape
    tokens, top, few = len(x), chosen.shape[1], len(x) <= FEW_TOKENS
    inner = x.new_empty(tokens * top, middle)
    first, second = _tiles_for(tokens, top, count, x.device)
    order = None if few else _ordered(chosen, count, first.rows)
    _products(x, experts, chosen, order, inner, first, gated=True)
    rows = x.new_empty(tokens * top, size)
    _products(inner, experts, chosen, order, rows, second, gated=False)
    out = torch.empty_like(x)
    block = min(1024, triton.next_power_of_2(x.shape[1]))
    sum_kernel[(tokens, triton.cdiv(x.shape[1], block))](
        rows,
        scores,
        out,
        SIZE=x.shape[1],
        TOP=top,
        TOP_BLOCK=triton.next_power_of_2(top),
        BLOCK=block,
        num_warps=4,
        **dependent_launch.options(x.device),
    )
    return out


def _gate(experts: Experts) -> dict[str, Any]:
    """How a program makes one number of a gate and its partner."""
    alpha, limit = experts.clamp or (0.0, 0.0)
    return {
        "alpha": alpha,
        "limit": limit,
        "INTERLEAVED": experts.interleaved,
        "CLAMPED": experts.clamp is not None,
    }


def _mix_one(x: torch.Tensor, experts: Experts, chosen: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    size, inner, top = x.shape[1], experts.down.shape[2], chosen.shape[1]
    between, out = x.new_empty(top, inner), torch.empty_like(x)
    options = dependent_launch.options(x.device)
    rows, block, warps = _ONE_GATE
    one_gate_kernel[(triton.cdiv(inner, rows), top)](
        x.view(torch.int32),
        experts.gate_up.view(torch.int32),
        experts.gate_up_bias,
        chosen,
        between,
        inner,
        BIAS=experts.gate_up_bias is not None,
        WORDS=size // 2,
        ROWS=rows,
        BLOCK=block,
        num_warps=warps,
        **_gate(experts),
        **options,
    )
    rows, block, warps = _ONE_DOWN
    one_down_kernel[(triton.cdiv(size, rows),)](
        between.view(torch.int32),
        experts.down.view(torch.int32),
        experts.down_bias,
        chosen,
        scores,
        out,
        size,
        BIAS=experts.down_bias is not None,
        WORDS=inner // 2,
        TOP=top,
        TOP_BLOCK=triton.next_power_of_2(top),
        ROWS=rows,
        BLOCK=block,
        num_warps=warps,
        **options,
    )
    return out


def _ordered(chosen: torch.Tensor, count: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs in the order of their experts, in tiles of `rows`, and the expert of each tile or -1."""
    pairs, bins = chosen.numel(), triton.next_power_of_2(count)
    tiles = (pairs + min(pairs, count) * (rows - 1)) // rows  # all but one pair of each expert's last tile left over
    block = triton.next_power_of_2(pairs if pairs <= _SHARE else max(_SHARE, triton.cdiv(pairs, _MOST_SHARES)))
    shares = triton.cdiv(pairs, block)
    options = dependent_launch.options(chosen.device)
    order, owners, counts = (
        torch.empty(size, dtype=torch.int32, device=chosen.device) for size in (tiles * rows, tiles, shares * bins)
    )
    if shares > 1:
        count_kernel[(shares,)](chosen, counts, pairs, BINS=bins, BLOCK=block, num_warps=4, **options)
    order_kernel[(count + 1, shares)](
        chosen,
        counts,
        order,
        owners,
        pairs,
        tiles,
        shares,
        EXPERTS=count,
        BINS=bins,
        ROWS=rows,
        MOST_SHARES=1 if shares == 1 else _MOST_SHARES,
        BLOCK=block,
        num_warps=4,
        **options,
    )
    return order, owners


def _products(
    x: torch.Tensor,
    experts: Experts,
    chosen: torch.Tensor,
    order: tuple[torch.Tensor, torch.Tensor] | None,
    out: torch.Tensor,
    tile: Tile,
    *,
    gated: bool,
) -> None:
    """Write the products of all pairs with their experts' weights into `out`, [pairs, outputs]."""
    pairs, outputs = out.shape
    tokens, top = chosen.shape
    pair_list, owners = (chosen, chosen) if order is None else order
    weight, bias = (experts.gate_up, experts.gate_up_bias) if gated else (experts.down, experts.down_bias)
    products_kernel[((pairs if order is None else len(owners)) * triton.cdiv(outputs, tile.outputs),)](
        x,
        weight,
        bias,
        chosen,
        pair_list,
        owners,
        out,
        tokens,
        outputs,
        SIZE=weight.shape[2],
        TOP=top,
        TOP_BLOCK=triton.next_power_of_2(top),
        GATED=gated,
        BIAS=bias is not None,
        ORDERED=order is not None,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        BLOCK=tile.block,
        STAGES=tile.stages,
        num_warps=tile.warps,
        **(_gate(experts) if gated else _NO_GATE),
        **dependent_launch.options(x.device),
    )
