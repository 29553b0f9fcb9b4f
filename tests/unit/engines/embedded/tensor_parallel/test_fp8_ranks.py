"""An engine on two ranks with weights and a KV cache in FP8. A process has one group of ranks: hence its own module."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from openai_bls.core.manifest import load_manifest, write_manifest
from openai_bls.engines.embedded import model_loader
from openai_bls.engines.embedded.fp8_numbers import FP8
from openai_bls.engines.embedded.runner_choice import RunnerChoice
from openai_bls.engines.embedded.tensor_parallel import ranks
from tests.unit.engines.embedded.tensor_parallel import gpu_follower
from tests.unit.engines.embedded.test_engine import PROMPTS, run_all

if TYPE_CHECKING:
    from tests.unit.engines.conftest import EngineFactory


def test_answers_are_those_of_one_rank(
    version_dir: Path, tmp_path: Path, start: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drafts; weights, keys and values are rounded alike."""
    monkeypatch.setattr(ranks, "_FOLLOWER", gpu_follower.__name__)
    gpu_follower.as_on_a_gpu(monkeypatch)
    choice = RunnerChoice("continuous_batching", "paged", "tried", kv_cache_dtype="fp8")
    monkeypatch.setattr(model_loader, "choices", lambda *_: [choice])
    found = []
    for size in (1, 2):
        folder = tmp_path / str(size)
        shutil.copytree(version_dir, folder)
        changes: dict[str, Any] = {"tensor_parallel_size": size, "quant": "fp8", "self_test": None}
        write_manifest(folder, msgspec.structs.replace(load_manifest(folder), **changes))
        engine: Any
        engine, recorder = start(folder, speculative_method="ngram")
        found.append(run_all(engine, recorder, PROMPTS))
        caches = engine._batcher.processor.cache.layer_to_allocator[1].get_cache_for_block_table(1)
        assert [(cache.dtype, cache.shape[2]) for cache in caches] == [(FP8, 2 // size)] * 2
        assert engine.self_test.kv_cache_dtype == "fp8"
    assert found[0] == found[1]
