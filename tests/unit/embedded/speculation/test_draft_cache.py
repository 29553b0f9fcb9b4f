"""The cache of a draft model: the kernel's attention is that of plain PyTorch, whatever rows a pass has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openai_bls.embedded.gpu import attention_kernels
from openai_bls.embedded.speculation.draft_cache import SlotCache

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS, KV_HEADS, SIZE, LENGTH = 4, 2, 64, 200


def make(*, kernel: bool) -> SlotCache:
    config = SimpleNamespace(
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=SIZE, hidden_size=256, num_hidden_layers=1
    )
    model: Any = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda decoder: config), dtype=torch.float16, device=DEVICE
    )
    return SlotCache(model, 3, LENGTH, kernel=kernel)


def test_rows_of_several_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(attention_kernels, "processors", lambda device: 2)
    torch.manual_seed(0)
    caches = [make(kernel=kernel) for kernel in (True, False)]
    # Prompts, then accepted tokens beside the end of another prompt, then a guess of each.
    passes: list[tuple[list[tuple[int, int]], bool]] = [
        ([(0, i) for i in range(70)] + [(2, i) for i in range(5)], False),
        ([(2, i) for i in range(3, 6)] + [(1, 0)], False),
        ([(1, 1), (0, 70), (2, 6)], True),
    ]
    for rows, alone in passes:
        slots, positions = torch.tensor(rows, device=DEVICE).T
        q, k, v = (
            torch.randn(len(rows), heads, SIZE, dtype=torch.float16, device=DEVICE)
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        found = []
        for cache in caches:
            cache.begin(slots, positions, alone=alone)
            found.append(cache.attend(0, q, k, v, SIZE**-0.5).float())
        torch.testing.assert_close(*found, rtol=0.02, atol=0.02)
    for by_kernel, plain in zip(*(cache._layers[0] for cache in caches), strict=True):
        assert torch.equal(by_kernel, plain)
