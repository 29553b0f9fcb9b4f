"""`attention_kernels` in plain PyTorch, for machines without a GPU."""

from __future__ import annotations

import itertools

import torch

from openai_bls_transformers.attention_spec import PLAIN, Scoring

calls: list[str] = []
"""Which function was called, in order; for tests to look at and clear."""


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, scoring: Scoring = PLAIN) -> torch.Tensor:
    """One sequence: [queries, heads, size] over [keys, key heads, size]; the last query sees every key, or a window."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if scoring.cap:
        scores = scoring.cap * torch.tanh(scores / scoring.cap)
    shape, past = (q.shape[0], k.shape[0]), k.shape[0] - q.shape[0]
    hidden = torch.ones(shape, dtype=torch.bool).triu(past + 1)
    if scoring.window:
        hidden |= torch.ones(shape, dtype=torch.bool).tril(past - scoring.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(scores)[:, None, None].expand(-1, q.shape[0], 1)
        return torch.einsum("hqk,khd->qhd", torch.cat([scores, sinks], -1).softmax(-1)[..., :-1], v)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def read(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows of a cache; of one in FP8, which is copied by its bytes alone, in float32."""
    if cache.dtype != torch.float8_e4m3fn:
        return cache[slots]
    return cache.view(torch.uint8)[slots].view(cache.dtype).float()


def write(cache: torch.Tensor, slot: torch.Tensor, row: torch.Tensor) -> None:
    """Put one row into a cache, or several into as many slots."""
    if cache.dtype == torch.float8_e4m3fn:
        cache, row = cache.view(torch.uint8), row.clamp(-448, 448).to(cache.dtype).view(torch.uint8)
    cache[slot] = row


def decode_attention(
    query: torch.Tensor,
    new_key: torch.Tensor,
    new_value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    pages: torch.Tensor,
    key_ends: torch.Tensor,
    page_size: int,
    scale: float,
    processors: int,
    angles: tuple[torch.Tensor, torch.Tensor] | None = None,
    scoring: Scoring = PLAIN,
) -> torch.Tensor:
    calls.append("decode" if angles is None else "rotate and decode")
    if angles is not None:
        cos, sin = (x.unsqueeze(1) for x in angles)
        query, new_key = (
            x * cos + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin for x in (query, new_key)
        )
    out = torch.full_like(query, torch.nan)
    for i, length in enumerate(key_ends.diff().tolist()):
        if not length:
            continue
        slots = torch.tensor([int(pages[i, p // page_size]) * page_size + p % page_size for p in range(length)])
        keys, values = (read(cache, slots) for cache in (key_cache, value_cache))
        keys[-1], values[-1] = new_key[i], new_value[i]
        write(key_cache, slots[-1], new_key[i])
        write(value_cache, slots[-1], new_value[i])
        out[i : i + 1] = causal(query[i : i + 1], keys, values, scale, scoring)
    return out


def _unbounded(slots: torch.Tensor) -> torch.Tensor:
    """All that lies behind a pointer: in a replayed graph the list may be longer than when it was captured."""
    behind = slots.untyped_storage().nbytes() // slots.itemsize - slots.storage_offset()
    return slots.as_strided((behind,), (1,))


def mixed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    scale: float,
    most_queries: int = 2**30,
    split_keys: bool = False,
    scoring: Scoring = PLAIN,
) -> torch.Tensor:
    calls.append("mixed")
    out = torch.full_like(query, torch.nan)
    places = _unbounded(slots)
    bounds = zip(itertools.pairwise(query_ends.tolist()), itertools.pairwise(key_ends.tolist()), strict=True)
    for (q0, q1), (k0, k1) in bounds:
        if 0 < q1 - q0 <= most_queries:
            keys, values = (read(cache, places[k0:k1]) for cache in (key, value))
            out[q0:q1] = causal(query[q0:q1], keys, values, scale, scoring)
    return out


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    most_queries: int,
    most_keys: int,
    scale: float,
) -> torch.Tensor:
    """What PyTorch's flash attention for packed sequences does."""
    assert most_queries >= int(query_ends.diff().max())
    assert most_keys >= int(key_ends.diff().max())
    result = mixed_attention(q, k, v, torch.arange(k.shape[0]), query_ends, key_ends, scale)
    calls[-1] = "flash"
    return result


def processors(device: object) -> int:
    return 8


def is_supported(device: torch.device, size: int) -> bool:
    return True


def prompt_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, scale: float
) -> None:
    calls.append("prompt")
    out.copy_(causal(query, key, value, scale))
