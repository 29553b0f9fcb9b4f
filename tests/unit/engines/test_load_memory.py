"""Estimates of the memory that a load takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.core.machine.memory import available_bytes
from openai_bls.core.manifest import load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.load_memory import gpu_is_visible, of_checkpoint
from openai_bls.engines.plugin import LoadMemory, LoadRequest
from tests.engine_contract.memory import GIB, MIB, estimate, write_engine


def test_what_takes_nothing(tmp_path: Path) -> None:
    assert estimate(tmp_path / "none") == LoadMemory(0)
    folder = write_engine(tmp_path, "null")
    assert estimate(folder) == estimate(folder, {"engine": "null"}) == LoadMemory(0)


@pytest.mark.parametrize(
    ("stored", "dtype", "weights"),
    [("bfloat16", "auto", 6 * GIB), ("float32", "auto", 3 * GIB), ("bfloat16", "bfloat16", 3 * GIB)],
)
def test_weights_of_a_checkpoint(tmp_path: Path, stored: str, dtype: str, weights: int) -> None:
    """In the type that they are computed in, on a CPU; on a GPU they are mapped from their files."""
    folder = write_engine(tmp_path, "null", stored, dtype=dtype)
    request = LoadRequest(folder, load_manifest(folder), None, EngineSettings(), gpu=False)
    # Keys and values of 64 numbers in 2 layers.
    found = of_checkpoint(request, MIB, lambda facts: facts.kv_bytes_per_token)
    assert found == LoadMemory(weights + MIB + 2 * 64 * 2 * 4)
    assert of_checkpoint(request._replace(gpu=True), MIB) == LoadMemory(2049 * MIB, on_gpu=True)


def test_visible_gpus(tmp_path: Path) -> None:
    assert not gpu_is_visible({}, tmp_path / "none")
    assert not gpu_is_visible({}, tmp_path)
    (tmp_path / "0000:01:00.0").mkdir()
    assert gpu_is_visible({}, tmp_path)
    assert gpu_is_visible({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path)
    assert not gpu_is_visible({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)


def test_free_memory_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       900 kB\nMemAvailable:   800 kB\n")
    assert available_bytes(tmp_path, tmp_path) == 800 << 10
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path, tmp_path) == 800 << 10
    (tmp_path / "memory.max").write_text(f"{500 << 10}\n")
    (tmp_path / "memory.current").write_text(f"{300 << 10}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {60 << 10}\nactive_file {40 << 10}\n")
    assert available_bytes(tmp_path, tmp_path) == 300 << 10
