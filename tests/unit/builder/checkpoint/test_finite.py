from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from openai_bls.builder.checkpoint.finite import not_finite

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn)


# float8_e4m3fn has no infinity.
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (dtype, value)
        for dtype in FLOATS
        for value in ((math.nan,) if dtype is torch.float8_e4m3fn else (math.nan, math.inf, -math.inf))
    ],
)
def test_one_number_of_many(dtype: torch.dtype, value: float, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    spoiled = torch.zeros(3, 700_001, dtype=dtype)
    spoiled[1, -1] = value
    largest = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)
    odd = torch.ones(3, dtype=torch.uint8)
    save_file({"odd": odd, "b": spoiled, "a": largest, "empty": torch.zeros(0, dtype=dtype)}, path)
    seen: list[int] = []
    assert not_finite(path, seen.append) == ["b"]
    assert sum(seen) == (spoiled.numel() + largest.numel()) * dtype.itemsize


@given(
    patterns=st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_every_pattern_of_bits(
    patterns: list[int], dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> None:
    numbers = torch.tensor(patterns, dtype=torch.uint16).view(dtype)
    path = tmp_path_factory.mktemp("bits") / "model.safetensors"
    save_file({"x": numbers}, path)
    assert bool(not_finite(path)) == (not numbers.isfinite().all())
