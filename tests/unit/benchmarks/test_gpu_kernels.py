"""Comparison of kernels, in Triton's interpreter: our results equal those of what can run without a GPU."""

from __future__ import annotations

import torch

from benchmarks.gpu_kernels import Model, fp8_products, long_prompt, markdown, packed_attention, small_kernels

MODEL = Model(heads=4, kv_heads=2, size=64, hidden=96, intermediate=128, vocabulary=160)
ROUNDED = "rows rounded to FP8"
"""Sums of so few numbers are further off than those of a layer's thousands."""


def test_contenders_agree() -> None:
    torch.manual_seed(0)
    cases, _ = small_kernels(MODEL, (1, 5))
    cases.append(packed_attention(MODEL, "2 × 256", [1, 1], [256, 256]))
    cases.append(long_prompt(MODEL, 5, 3))
    cases += fp8_products(MODEL, (1,))
    for case in cases:
        assert len(case.us) > 1
        assert not any("differs" in note for name, note in case.notes.items() if name != ROUNDED)
    table = markdown(cases)
    assert "| 2 × 256 |" in table
    assert "| down, 1 |" in table
