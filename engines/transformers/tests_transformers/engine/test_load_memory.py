"""Estimate of the memory that a load takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.engines.plugin import LoadMemory
from tests.engine_contract.memory import GIB, MIB, estimate, write_engine


@pytest.mark.parametrize(
    ("dtype", "fields", "weights"),
    [
        ("bfloat16", {}, 6 * GIB),
        ("float32", {}, 3 * GIB),
        ("bfloat16", {"dtype": "bfloat16"}, 3 * GIB),
    ],
)
def test_on_a_cpu(tmp_path: Path, dtype: str, fields: dict[str, Any], weights: int) -> None:
    """Weights in the type that they are computed in, the cache, and the process."""
    expected = LoadMemory(weights + 256 * MIB + 512 * MIB)
    assert estimate(write_engine(tmp_path, "transformers", dtype, **fields)) == expected


def test_a_context_that_needs_more_than_the_usual_cache(tmp_path: Path) -> None:
    found = estimate(write_engine(tmp_path, "transformers", "float32", max_model_len=1 << 20))
    # Keys and values of 64 numbers in 2 layers.
    assert found.host_bytes == 3 * GIB + 512 * MIB + (1 << 20) * 2 * 64 * 2 * 4


def test_engines_on_a_gpu_take_turns(tmp_path: Path) -> None:
    folder = write_engine(tmp_path, "transformers")
    assert estimate(folder, gpu=True).on_gpu
    assert not estimate(folder, {"device": "cpu"}, gpu=True).on_gpu
