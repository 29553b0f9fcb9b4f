"""KV cache and attention of a draft model: a place of fixed size for each of a few sequences.

Every row of a pass is one token of one sequence, whatever the others are, and sees its sequence's place up to its own
position. So prompts, accepted tokens and guesses are read by one kind of pass, whose shapes depend on the number of its
rows alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from openai_bls.embedded.attention_spec import head_sizes, refuse_features

_NAME = "openai_bls_flash_draft"
"""transformers makes no mask for an attention with "flash" in its name."""


def use(model: Any) -> None:
    """Let `model` attend over a `SlotCache`, which its forward pass gets as the argument `cache`."""
    AttentionInterface.register(_NAME, _attention)
    model.config._attn_implementation = _NAME


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over query [1, heads, rows, size]; returns [1, rows, heads, size]."""
    refuse_features(kwargs, "attention over the cache of a draft model has no {}")
    cache: SlotCache = kwargs["cache"]
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    return cache.attend(module.layer_idx, q, k, v, scale).unsqueeze(0), None


class SlotCache:
    """Keys and values of a few sequences."""

    def __init__(self, model: Any, slots: int, length: int, *, kernel: bool) -> None:
        """Allocate the cache.

        Args:
            model: the draft model, on its device.
            slots: sequences.
            length: tokens of each.
            kernel: attend by the kernel for decoding steps, which can be captured in CUDA graphs.
        """
        config = model.config.get_text_config(decoder=True)
        shape = (slots * length, *head_sizes(config)[1:])
        self._layers = [
            tuple(torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(2))
            for _ in range(config.num_hidden_layers)
        ]
        self._length = length
        self._kernel = kernel
        self._written: torch.Tensor | None = None
        self._pages = self._ends = torch.empty(0)
        self._runs: list[tuple[int, int, int, int]] = []
        """(first row, row after the last, first key, key after the last) of each sequence, where there is no kernel."""

    def begin(self, slots: torch.Tensor, positions: torch.Tensor, *, alone: bool) -> None:
        """Note the rows of the next pass.

        Args:
            slots: int64 [rows]; rows of one sequence stand together.
            positions: int64 [rows], rising within a sequence.
            alone: each row is of another sequence.
        """
        # The kernel writes each row's own keys and values, which no row of another sequence reads.
        self._written = None if self._kernel and alone else slots * self._length + positions
        if self._kernel:
            self._pages = slots.int().unsqueeze(1)
            self._ends = pad((positions + 1).cumsum(0), (1, 0)).int()
            return
        places = list(zip(slots.tolist(), positions.tolist(), strict=True))
        self._runs, row = [], 0
        for slot, group in itertools.groupby(places, lambda place: place[0]):
            end = row + len(rows := list(group))
            self._runs.append((row, end, slot * self._length, slot * self._length + rows[-1][1] + 1))
            row = end

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of the pass's rows, [rows, heads, size]; their own keys and values are written first."""
        keys, values = self._layers[layer]
        if self._written is not None:
            keys.index_copy_(0, self._written, k)
            values.index_copy_(0, self._written, v)
        if self._kernel:
            from openai_bls.embedded.gpu import attention_kernels

            # A slot is a page. Rows of one sequence write what is there already, so none need wait for another.
            count = attention_kernels.processors(q.device)
            return attention_kernels.decode_attention(
                q, k, v, keys, values, self._pages, self._ends, self._length, scale, count
            )
        out = torch.empty_like(q)
        for first, end, begin, stop in self._runs:
            rows, seen = end - first, stop - begin
            query, key, value = (x.transpose(0, 1)[None] for x in (q[first:end], keys[begin:stop], values[begin:stop]))
            mask = torch.ones(rows, seen, dtype=torch.bool, device=q.device).tril(seen - rows)
            shared = q.shape[1] != k.shape[1]
            found = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=shared)
            out[first:end] = found[0].transpose(0, 1)
        return out
