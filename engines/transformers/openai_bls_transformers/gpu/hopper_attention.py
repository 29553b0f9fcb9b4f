"""Attention of long prompts on Hopper GPUs: `prompt_attention` with its work shared out among warps.

A program has 128 queries of one head. One warp fetches tiles of keys and values; two groups of four warps have 64 of
the queries each, and the product of the next tile of keys runs while the softmax of this one is computed. Triton's
compiler does neither for Hopper, so this is written in its lower language, Gluon. cuDNN is as fast, but takes 36 to 871
milliseconds to plan each new pair of lengths.
"""

# ruff: noqa: ANN001, ANN202, N803, N806
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found"

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from openai_bls_transformers.gpu.attention_programs import LOG2_E

_ROWS = 64
"""Queries of a group of warps."""
_TOKENS = 128
"""Keys per tile."""
_STAGES = 2
"""Tiles of keys, and of values, in shared memory."""
_REGISTERS = (240, 24)
"""Registers per thread of a group that computes, and of the warp that fetches."""
_LEAST_SCORE = gl.constexpr(-1e20)
"""Below any score, but finite: a group may see no key of the first tile."""


_load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""Copy by the tensor memory accelerator; the latter is its name in Triton 3.6."""


@gluon.jit
def _fetch(q_desc, k_desc, v_desc, queries, keys, values, place, column):
    """Bring the queries, then the tiles of keys and values from the last to the first."""
    q_row, _, _, tiles, _, head = place
    q_tiles, q_ready = queries
    k_tiles, k_ready, k_free = keys
    v_tiles, v_ready, v_free = values
    STAGES: gl.constexpr = k_tiles.shape[0]
    TILE: gl.constexpr = k_tiles.shape[1]
    ROWS: gl.constexpr = q_tiles.shape[1]
    mbarrier.expect(q_ready, 2 * q_desc.block_type.nbytes)
    q_column = head * q_tiles.shape[2]
    _load_tile(q_desc, [q_row, q_column], q_ready, q_tiles.index(0))
    _load_tile(q_desc, [q_row + ROWS, q_column], q_ready, q_tiles.index(1))
    for i in range(tiles):
        stage = i % STAGES
        free = i // STAGES + 1 & 1
        start = (tiles - 1 - i) * TILE
        mbarrier.wait(k_free.index(stage), free)
        mbarrier.expect(k_ready.index(stage), k_desc.block_type.nbytes)
        _load_tile(k_desc, [start, column], k_ready.index(stage), k_tiles.index(stage))
        mbarrier.wait(v_free.index(stage), free)
        mbarrier.expect(v_ready.index(stage), v_desc.block_type.nbytes)
        _load_tile(v_desc, [start, column], v_ready.index(stage), v_tiles.index(stage))


@gluon.jit
def _queue_scores(q, keys, i):
    """Begin the product of the queries and tile `i` of the keys."""
    k_tiles, k_ready, _ = keys
    STAGES: gl.constexpr = k_tiles.shape[0]
    TILE: gl.constexpr = k_tiles.shape[1]
    ROWS: gl.constexpr = q.shape[0]
    stage = i % STAGES
    mbarrier.wait(k_ready.index(stage), i // STAGES & 1)
    zeros = gl.zeros([ROWS, TILE], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16]))
    return warpgroup_mma(q, k_tiles.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _queue_values(weights, values, sums, i):
    """Begin to add tile `i` of the values, weighted."""
    v_tiles, v_ready, _ = values
    STAGES: gl.constexpr = v_tiles.shape[0]
    stage = i % STAGES
    mbarrier.wait(v_ready.index(stage), i // STAGES & 1)
    return warpgroup_mma(weights, v_tiles.index(stage), sums, is_async=True)


@gluon.jit
def _softmax(
    scores, best, total, scale, start, position, MASKED: gl.constexpr, dtype: gl.constexpr, LAYOUT: gl.constexpr
):
    """Weights of one more tile of keys, what those before it are worth now, the running maximum and sum."""
    if MASKED:
        key = start + gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(key[None, :] <= position[:, None], scores, float("-inf"))
    higher = gl.maximum(best, gl.max(scores, 1) * scale)
    weights = gl.exp2(scores * scale - higher[:, None])
    shrink = gl.exp2(best - higher)
    total = total * shrink + gl.sum(weights, 1)
    return gl.convert_layout(weights.to(dtype), LAYOUT), shrink, higher, total


@gluon.jit
def _tiles(q, keys, values, weights, best, total, sums, scale, position, first, last, tiles, MASKED: gl.constexpr):
    """Tiles `first` to `last`; the values of the tile before are added while the scores of one are on their way."""
    k_tiles, _, k_free = keys
    _, _, v_free = values
    STAGES: gl.constexpr = k_tiles.shape[0]
    WEIGHTS: gl.constexpr = weights.type.layout
    SUMS: gl.constexpr = gl.SliceLayout(1, sums.type.layout)
    for i in range(first, last):
        scores_later = _queue_scores(q, keys, i)
        sums_later = _queue_values(weights, values, sums, i - 1)
        scores = warpgroup_mma_wait(1, deps=[scores_later])
        mbarrier.arrive(k_free.index(i % STAGES))
        start = (tiles - 1 - i) * k_tiles.shape[1]
        following, shrink, best, total = _softmax(
            scores, best, total, scale, start, position, MASKED, weights.dtype, WEIGHTS
        )
        sums, weights = warpgroup_mma_wait(0, deps=[sums_later, weights])
        mbarrier.arrive(v_free.index((i - 1) % STAGES))
        sums = sums * gl.convert_layout(shrink, SUMS)[:, None]
        weights = following
    return weights, best, total, sums


@gluon.jit
def _attend(queries, keys, values, out_ptr, scale, place, HEADS: gl.constexpr, GROUP: gl.constexpr):
    """The queries of one group of warps."""
    q_row, count, past, tiles, seen_by_all, head = place
    q_tiles, q_ready = queries
    k_tiles, _, k_free = keys
    ROWS: gl.constexpr = q_tiles.shape[1]
    SIZE: gl.constexpr = q_tiles.shape[2]
    TILE: gl.constexpr = k_tiles.shape[1]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    q = q_tiles.index(GROUP)
    q_row += GROUP * ROWS
    position = past + q_row + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    best = gl.full([ROWS], _LEAST_SCORE, gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    sums = gl.zeros([ROWS, SIZE], gl.float32, SUMS)
    mbarrier.wait(q_ready, 0)
    scores = warpgroup_mma_wait(0, deps=[_queue_scores(q, keys, 0)])
    mbarrier.arrive(k_free.index(0))
    start = (tiles - 1) * TILE
    weights, _, best, total = _softmax(scores, best, total, scale, start, position, True, q.dtype, WEIGHTS)
    masked = tiles - seen_by_all
    weights, best, total, sums = _tiles(
        q, keys, values, weights, best, total, sums, scale, position, 1, masked, tiles, True
    )
    weights, best, total, sums = _tiles(
        q, keys, values, weights, best, total, sums, scale, position, gl.maximum(1, masked), tiles, tiles, False
    )
    sums = warpgroup_mma_wait(0, deps=[_queue_values(weights, values, sums, tiles - 1)])
    sums = sums / gl.convert_layout(total, gl.SliceLayout(1, SUMS))[:, None]
    row = q_row + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))
    dims = gl.arange(0, SIZE, gl.SliceLayout(0, SUMS))
    to = out_ptr + (row.to(gl.int64) * HEADS + head)[:, None] * SIZE + dims[None, :]
    gl.store(to, sums.to(out_ptr.dtype.element_ty), mask=(row < count)[:, None])


@gluon.jit
def _barriers(STAGES: gl.constexpr, COUNT: gl.constexpr):
    """A barrier per stage, passed when COUNT have arrived."""
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(barriers.index(i), count=COUNT)
    return barriers


@gluon.jit(do_not_specialize=["queries", "length"])
def _hopper_prompt_kernel(
    q_desc,
    k_desc,
    v_desc,
    out_ptr,
    queries,
    length,
    scale,
    HEADS: gl.constexpr,
    SHARING: gl.constexpr,
    STAGES: gl.constexpr,
    COMPUTING: gl.constexpr,
    FETCHING: gl.constexpr,
):
    """Consecutive queries of one head; those with most keys come first."""
    ROWS: gl.constexpr = q_desc.block_type.shape[0]
    SIZE: gl.constexpr = q_desc.block_type.shape[1]
    TILE: gl.constexpr = k_desc.block_type.shape[0]
    head = gl.program_id(0)
    q_row = (gl.num_programs(1) - 1 - gl.program_id(1)) * 2 * ROWS
    past = length - queries
    tiles = gl.cdiv(gl.minimum(past + q_row + 2 * ROWS, length), TILE)
    seen_by_all = gl.minimum((past + q_row + 1) // TILE, tiles - 1)
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, SIZE], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, SIZE], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(v_desc.dtype, [STAGES, TILE, SIZE], v_desc.layout)
    shared_q = (q_tiles, _barriers(1, 1).index(0))
    shared_k = (k_tiles, _barriers(STAGES, 1), _barriers(STAGES, 2))
    shared_v = (v_tiles, _barriers(STAGES, 1), _barriers(STAGES, 2))
    fence_async_shared()
    first: gl.constexpr = gl.constexpr(0)
    second: gl.constexpr = gl.constexpr(1)
    place = (q_row, queries, past, tiles, seen_by_all, head)
    gl.warp_specialize(
        [
            (_attend, (shared_q, shared_k, shared_v, out_ptr, scale, place, HEADS, first)),
            (_attend, (shared_q, shared_k, shared_v, out_ptr, scale, place, HEADS, second)),
            (_fetch, (q_desc, k_desc, v_desc, shared_q, shared_k, shared_v, place, head // SHARING * SIZE)),
        ],
        [4, 1],
        [COMPUTING, FETCHING],
    )


def is_supported(device: torch.device, size: int) -> bool:
    """True if the kernel is made for this GPU and for heads of `size`."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9 and size in (64, 128)


def prompt_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, scale: float
) -> None:
    """Causal attention of one sequence; arguments as of `prompt_attention.prompt_attention`."""
    queries, heads, size = query.shape
    length, kv_heads, _ = key.shape
    if query.stride(1) != size:
        query = query.contiguous()
    _hopper_prompt_kernel[(heads, triton.cdiv(queries, 2 * _ROWS))](
        _tiled(query, heads * size, _ROWS, size),
        *(_tiled(x, kv_heads * size, _TOKENS, size) for x in (key, value)),
        out,
        queries,
        length,
        scale * LOG2_E,
        HEADS=heads,
        SHARING=heads // kv_heads,
        STAGES=_STAGES,
        COMPUTING=_REGISTERS[0],
        FETCHING=_REGISTERS[1],
        num_warps=4,
    )


def _tiled(x: torch.Tensor, width: int, rows: int, size: int) -> TensorDescriptor:
    """`x`, [rows, heads, size], in tiles of some rows of one head."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, size], gl.bfloat16)
    return TensorDescriptor(x, [x.shape[0], width], [x.stride(0), 1], [rows, size], layout)
