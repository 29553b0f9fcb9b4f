"""Isolation of sequences in attention that sees the keys of all sequences of a step under a mask.

What a mask rules out is multiplied by zero there, and zero times NaN is NaN: a sequence whose keys or values are not
finite would spoil all others of its step.
"""

from __future__ import annotations

from typing import Any

import torch

from openai_bls_transformers.cache_argument import update


class IsolatedCache:
    """Paged cache for one call of attention: keys and values that are not finite are read as zeros."""

    def __init__(self, cache: Any) -> None:
        """Args: cache: a `PagedAttentionCache`."""
        self._cache = cache
        self._spoiled: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [1, heads, keys, size] of all sequences of the step."""
        key, value = update(self._cache, **arguments)
        if key.dim() != 4:  # 5.17
            return key, value
        largest = torch.maximum(key.abs().amax(dim=(1, 3)), value.abs().amax(dim=(1, 3)))
        self._spoiled = ~largest.isfinite()
        at = self._spoiled[:, None, :, None]
        return key.masked_fill(at, 0), value.masked_fill(at, 0)

    def spread(self, output: torch.Tensor, mask: Any) -> torch.Tensor:
        """NaN for the queries that see such keys.

        Args:
            output: output of attention, [1, queries, heads, size].
            mask: [1, 1, queries, keys]: what is added to the scores, 0 where a query sees a key.
        """
        if self._spoiled is None or not isinstance(mask, torch.Tensor):
            return output
        seen = (mask >= 0) & self._spoiled
        return output.masked_fill(seen.any(-1)[:, 0, :, None, None], torch.nan)
