"""Estimate of the memory that a load takes."""

from __future__ import annotations

from pathlib import Path

from openai_bls.core.manifest import FileRecord, KvCacheSettings
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.plugin import LoadMemory
from openai_bls_llama_cpp.record import LlamaCppRecord
from tests.engine_contract.memory import GIB, MIB, estimate, write_engine


def test_a_file_and_its_cache(tmp_path: Path) -> None:
    """The file as it is and a cache of 16 bits, on a CPU in any case; nothing where the load will fail at once."""
    files, record = {"model.gguf": FileRecord(GIB)}, LlamaCppRecord(version="1").fields()
    for asked, taken in ((200, 200), (1 << 20, 4 * 64)):
        kv_cache = KvCacheSettings(max_tokens_in_kv_cache=asked)
        folder = write_engine(tmp_path, "llama_cpp", files=files, kv_cache=kv_cache, record=record)
        # Keys and values of 64 numbers in 2 layers.
        assert estimate(folder, gpu=True) == LoadMemory(GIB + taken * 2 * 64 * 2 * 2 + 256 * MIB)
    for overrides, settings, taken in (
        ({"max_batch_size": "2"}, None, 2 * 64),
        ({"max_tokens_in_kv_cache": "100"}, None, 100),
        ({}, EngineSettings(max_tokens_in_paged_kv_cache=150), 150),
    ):
        found = estimate(folder, overrides, settings, gpu=True)
        assert found == LoadMemory(GIB + taken * 2 * 64 * 2 * 2 + 256 * MIB)
    without = write_engine(tmp_path, "llama_cpp", files=files, record=record)
    assert estimate(without, gpu=True) == LoadMemory(0)
