"""Settings of config.pbtxt that the embedded engine takes, and those that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.core.manifest import Manifest, write_manifest
from tests.unit.triton_models.repository.rendering import check_setting


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("kv_cache_free_gpu_mem_fraction=0.5", "is for TensorRT-LLM engines, and this one is embedded"),
        ("guided_decoding_backend=xgrammar", "is for TensorRT-LLM engines, and this one is embedded"),
        ("max_tokens_in_paged_kv_cache=99", "99 does not hold one sequence of 100 tokens"),
        ("max_tokens_in_paged_kv_cache=100", ""),
        ("enable_kv_cache_reuse=false", ""),
    ],
)
def test_settings(repository: Path, change: str, refusal: str) -> None:
    write_manifest(repository / "tensorrt_llm" / "1", Manifest("transformers", "m", 100, 4, 1))
    check_setting(repository, change, refusal)
