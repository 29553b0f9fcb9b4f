"""Estimates of the memory that a load takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core.machine.memory import available_bytes
from openai_bls.core.manifest import FileRecord, KvCacheSettings, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import load_memory
from openai_bls.engines.load_memory import gpu_is_visible
from openai_bls.engines.plugin import LoadMemory
from openai_bls_llama_cpp.record import LlamaCppRecord
from openai_bls_vllm.record import VllmRecord

MIB = 1 << 20
GIB = 1 << 30


def engine(folder: Path, stored: str = "bfloat16", **fields: Any) -> Path:
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "dtype": stored}
    (folder / "checkpoint" / "config.json").write_bytes(msgspec.json.encode(config))
    files = {"model.safetensors": FileRecord(3 * GIB), "tokenizer.json": FileRecord(5 * MIB)}
    common: dict[str, Any] = {"engine": "transformers", "model_name": "m", "max_model_len": 64, "max_batch_size": 4}
    manifest = Manifest(**{**common, "created": 0, "files": files, **fields})
    (folder / "engine.json").write_bytes(msgspec.json.encode(manifest))
    return folder


def estimate(folder: Path, overrides: dict[str, str], settings: EngineSettings | None = None) -> LoadMemory:
    return load_memory.load_memory(folder, overrides, settings or EngineSettings())


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_memory, "gpu_is_visible", lambda *_: False)


@pytest.mark.parametrize(
    ("dtype", "fields", "weights"),
    [
        ("bfloat16", {}, 6 * GIB),
        ("float32", {}, 3 * GIB),
        ("bfloat16", {"dtype": "bfloat16"}, 3 * GIB),
    ],
)
def test_the_embedded_engine_on_a_cpu(tmp_path: Path, dtype: str, fields: dict[str, Any], weights: int) -> None:
    """Weights in the type that they are computed in, the cache, and the process."""
    expected = LoadMemory(weights + 256 * MIB + 512 * MIB)
    assert estimate(engine(tmp_path, dtype, **fields), {}) == expected


def test_a_context_that_needs_more_than_the_usual_cache(tmp_path: Path) -> None:
    found = estimate(engine(tmp_path, "float32", max_model_len=1 << 20), {})
    # Keys and values of 64 numbers in 2 layers.
    assert found.host_bytes == 3 * GIB + 512 * MIB + (1 << 20) * 2 * 64 * 2 * 4


def test_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file as it is and a cache of 16 bits, on a CPU in any case; nothing where the load will fail at once."""
    monkeypatch.setattr(load_memory, "gpu_is_visible", lambda *_: True)
    files = {"model.gguf": FileRecord(GIB)}
    for asked, taken in ((200, 200), (1 << 20, 4 * 64)):
        kv_cache = KvCacheSettings(max_tokens_in_kv_cache=asked)
        record = LlamaCppRecord(version="1")
        folder = engine(tmp_path, engine="llama_cpp", files=files, kv_cache=kv_cache, record=record.fields())
        # Keys and values of 64 numbers in 2 layers.
        assert estimate(folder, {}) == LoadMemory(GIB + taken * 2 * 64 * 2 * 2 + 256 * MIB)
    for overrides, settings, taken in (
        ({"max_batch_size": "2"}, None, 2 * 64),
        ({"max_tokens_in_kv_cache": "100"}, None, 100),
        ({}, EngineSettings(max_tokens_in_paged_kv_cache=150), 150),
    ):
        assert estimate(folder, overrides, settings) == LoadMemory(GIB + taken * 2 * 64 * 2 * 2 + 256 * MIB)
    without = engine(tmp_path, engine="llama_cpp", files=files, record=LlamaCppRecord(version="1").fields())
    assert estimate(without, {}) == LoadMemory(0)


def test_engines_on_a_gpu_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_memory, "gpu_is_visible", lambda *_: True)
    folder = engine(tmp_path)
    assert estimate(folder, {}).on_gpu
    assert not estimate(folder, {"device": "cpu"}).on_gpu
    vllm = engine(tmp_path / "vllm", engine="vllm", record=VllmRecord("0.32.0").fields())
    assert estimate(vllm, {}).on_gpu


def test_vllm_on_a_cpu(tmp_path: Path) -> None:
    folder = engine(tmp_path, engine="vllm", record=VllmRecord("0.32.0").fields(), dtype="bfloat16")
    assert estimate(folder, {}) == LoadMemory(3 * GIB + GIB + 3 * GIB)


def test_what_takes_nothing(tmp_path: Path) -> None:
    assert estimate(tmp_path / "none", {}) == LoadMemory(0)
    folder = engine(tmp_path)
    assert estimate(folder, {"engine": "null"}) == LoadMemory(0)
    assert estimate(engine(folder, engine="null"), {}) == LoadMemory(0)


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
