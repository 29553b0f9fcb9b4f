"""Attention of long prompts on a GPU: causal attention of one sequence whose keys lie in order.

The keys and values of a long prompt are copied out of the paged cache once a layer, which costs little beside the
attention itself. Tiles of them are then fetched by the tensor memory accelerator of Hopper and newer GPUs, without an
address per key. Shapes depend on the prompt, so a step with one is not captured in a CUDA graph.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from openai_bls_transformers.gpu.attention_programs import LOG2_E, add_tile

_ROWS = 128
"""Queries per program."""
_TOKENS = 128
"""Keys per tile."""
_LEAST_CAPABILITY = (9, 0)
"""Compute capability with a tensor memory accelerator."""


@triton.jit(do_not_specialize=["queries", "length"])
def _prompt_kernel(
    q_ptr,
    keys,
    values,
    out_ptr,
    queries,
    length,
    scale,
    q_token,
    q_head,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """ROWS consecutive queries of one head; the blocks with most keys come first."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    column = head // GROUP * SIZE
    token = block * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, SIZE)
    offsets = tl.arange(0, TILE)
    is_row = (token < queries)[:, None]
    at = token.to(tl.int64)[:, None]
    q = tl.load(q_ptr + at * q_token + head * q_head + dims[None, :], mask=is_row, other=0.0)
    past = length - queries
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, SIZE], tl.float32)
    # Every query of the block sees all keys of the first tiles.
    seen_by_all = (past + block * ROWS + 1) // TILE * TILE
    for start in range(0, seen_by_all, TILE):
        k = keys.load([start, column])
        v = values.load([start, column])
        best, total, sums = add_tile(tl.dot(q, tl.trans(k)) * scale, v, best, total, sums)
    for start in range(seen_by_all, tl.minimum(past + (block + 1) * ROWS, length), TILE):
        k = keys.load([start, column])
        v = values.load([start, column])
        seen = (start + offsets)[None, :] <= (past + token)[:, None]
        scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        best, total, sums = add_tile(scores, v, best, total, sums)
    to = out_ptr + (at * HEADS + head) * SIZE + dims[None, :]
    tl.store(to, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_row)


def is_supported(device: torch.device, size: int) -> bool:
    """True if the kernel is made for this GPU and for heads of `size`."""
    on_device = device.type != "cuda" or torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY
    return on_device and size in (64, 128)


def prompt_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, scale: float
) -> None:
    """Causal attention of one sequence, the last query of which sees all keys.

    Args:
        query: [queries, heads, size], a row's numbers contiguous.
        key: [keys, key heads, size], contiguous.
        value: [keys, key heads, size], contiguous.
        out: [queries, heads, size], contiguous; written.
        scale: factor of the scores.
    """
    queries, heads, size = query.shape
    length, kv_heads, _ = key.shape
    tiles = [
        TensorDescriptor(x, [length, kv_heads * size], [kv_heads * size, 1], [_TOKENS, size]) for x in (key, value)
    ]
    _prompt_kernel[(triton.cdiv(queries, _ROWS), heads)](
        query,
        *tiles,
        out,
        queries,
        length,
        scale * LOG2_E,
        query.stride(0),
        query.stride(1),
        HEADS=heads,
        GROUP=heads // kv_heads,
        SIZE=size,
        ROWS=_ROWS,
        TILE=_TOKENS,
        num_warps=8,
        num_stages=3,
    )
