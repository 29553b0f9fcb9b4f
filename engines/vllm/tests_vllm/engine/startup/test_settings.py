"""Settings of config.pbtxt that vLLM takes, and those that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls_vllm.record import VllmRecord
from tests.unit.triton_models.repository.rendering import check_setting


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("kv_cache_free_gpu_mem_fraction=0.5", "is not for vLLM: leave it out; give gpu_memory_utilization"),
        ("enable_kv_cache_reuse=false", ""),
    ],
)
def test_settings(repository: Path, change: str, refusal: str) -> None:
    write_manifest(
        repository / "tensorrt_llm" / "1", Manifest("vllm", "m", 100, 4, 1, record=VllmRecord("0.32.0").fields())
    )
    check_setting(repository, change, refusal)
