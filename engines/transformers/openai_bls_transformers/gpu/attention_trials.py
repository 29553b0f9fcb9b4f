"""Trials of the GPU's attention on random numbers, against attention in plain PyTorch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch

from openai_bls_transformers.attention_spec import PLAIN, Scoring

_LONGEST_WINDOW = 100
"""Keys of a window that a trial reaches."""
_CLOSE = 0.03  # of attention over standard normal values in half precision
_ROUNDED = 0.07  # relative, of a number in e4m3

Flash = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, float], torch.Tensor]
"""Flash attention for packed sequences: queries, keys, values, where sequences end in them, longest ones, scale."""


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, scoring: Scoring = PLAIN
) -> torch.Tensor:
    """Causal attention of one sequence, [queries, heads, size] over [keys, key heads, size]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(groups, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if scoring.cap:
        scores = scoring.cap * torch.tanh(scores / scoring.cap)
    queries, keys = q.shape[0], k.shape[0]
    ahead = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(keys - queries + 1)
    if scoring.window:
        ahead |= torch.ones_like(ahead).tril(keys - queries - scoring.window)
    scores = scores.masked_fill(ahead, -torch.inf)
    if scoring.sinks is None:
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    sinks = scoring.sinks.float()[:, None, None].expand(-1, queries, 1)
    return torch.einsum("hqk,khd->qhd", torch.cat([scores, sinks], -1).softmax(-1)[..., :-1], v)


def require_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise if attention over standard normal numbers differs by more than half precision makes it."""
    difference = float((found.float() - wanted).abs().max())
    if not difference < _CLOSE:
        raise ArithmeticError(f"a trial differs from the reference by {difference:.2g}")


def ends(lengths: list[int], device: torch.device) -> torch.Tensor:
    """Running total of lengths, from 0, int32."""
    return torch.tensor([0, *lengths], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)


def _pieces(rows: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, ...]:
    return tuple(rows[: sum(lengths)].split(lengths))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of [tokens, heads, size]."""
    left, right = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-right, left], -1) * sin[:, None]


def try_paged(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    size: int,
    cache_dtype: torch.dtype,
    scoring: Scoring = PLAIN,
) -> None:
    """Decoding and a mixed step on random numbers; raises if they do not run or are wrong.

    A longer window than the trial's sequences reach is tried as one that they do.
    """
    from openai_bls_transformers.gpu import attention_kernels

    scoring = dataclasses.replace(scoring, window=min(scoring.window, _LONGEST_WINDOW))
    # A page and a table as the engine has them, for which the kernels are compiled anyway.
    page_size, keys, scale = 32, [1, 33, 200], size**-0.5
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=device, dtype=dtype)

    pages = torch.randperm(96, generator=random, device=device).to(torch.int32).view(3, 32)
    key_cache, value_cache = (normal(96 * page_size, kv_heads, size).to(cache_dtype) for _ in range(2))
    key_ends = ends(keys, device)
    slots = torch.cat(
        [
            (row.long()[:, None] * page_size + torch.arange(page_size, device=device)).flatten()[:count]
            for row, count in zip(pages, keys, strict=True)
        ]
    )
    last = slots[key_ends[1:].long() - 1]
    plain = normal(3, heads, size), normal(3, kv_heads, size), normal(3, kv_heads, size)
    half = normal(3, size // 2)
    cos, sin = (torch.cat([x, x], -1) for x in (half.cos(), half.sin()))
    for processors, angles in itertools.product((1, attention_kernels.processors(device)), (None, (cos, sin))):
        q, k, v = plain
        out = attention_kernels.decode_attention(
            q, k, v, key_cache, value_cache, pages, key_ends, page_size, scale, processors, angles, scoring
        )
        if angles is not None:
            q, k = (_rotated(x, cos, sin) for x in (q, k))
        wide_keys, wide_values = key_cache.to(dtype), value_cache.to(dtype)
        written = (wide_keys[last], wide_values[last])
        wide_keys[last], wide_values[last] = k, v  # which are not rounded in their own step
        for i, places in enumerate(_pieces(slots, keys)):
            wanted = reference(q[i : i + 1], wide_keys[places], wide_values[places], scale, scoring)
            require_close(out[i : i + 1], wanted)
        for found, new in zip(written, (k, v), strict=True):
            if not torch.allclose(found, new, rtol=_ROUNDED, atol=_ROUNDED):
                raise ArithmeticError("a trial left other keys and values in the cache than the new ones")
    queries = [1, 20, 70]
    q = normal(96, heads, size)
    bounds = slots, ends([*queries, 0], device), ends([1, 33, 200, 0], device)
    out = attention_kernels.mixed_attention(q, key_cache, value_cache, *bounds, scale, scoring=scoring)
    wide_keys, wide_values = key_cache.to(dtype), value_cache.to(dtype)
    parts = zip(_pieces(q, queries), _pieces(out, queries), _pieces(slots, keys), strict=True)
    for asked, answered, places in parts:
        require_close(answered, reference(asked, wide_keys[places], wide_values[places], scale, scoring))


def try_varlen(
    flash: Flash | None, device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, size: int
) -> None:
    """Packed sequences, some with a past, on random numbers; raises if they do not run or are wrong."""
    if flash is None:
        raise NotImplementedError("this PyTorch has no flash attention for packed sequences")
    random = torch.Generator(device).manual_seed(0)
    queries, keys, scale = [1, 20, 70], [1, 33, 200], size**-0.5
    q, k, v = (
        torch.randn(count, rows, size, generator=random, device=device, dtype=dtype)
        for count, rows in ((91, heads), (234, kv_heads), (234, kv_heads))
    )
    out = flash(q, k, v, ends(queries, device), ends(keys, device), 70, 200, scale)
    sequences = zip(_pieces(q, queries), _pieces(k, keys), _pieces(v, keys), _pieces(out, queries), strict=True)
    for asked, key, value, answered in sequences:
        require_close(answered, reference(asked, key, value, scale))
