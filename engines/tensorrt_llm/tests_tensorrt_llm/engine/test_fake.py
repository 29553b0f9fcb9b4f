"""The fake's habits, which the engine's and the builder's tests rely on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests_tensorrt_llm.engine.fake_support import environment, patched, small_checkpoint

END = 9


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Path]:
    """The fake in this process, answering 5, 6, 7; gives a checkpoint without weights."""
    with patched(environment(tokens="5,6,7")):
        yield small_checkpoint(tmp_path)


def llm_class(flow: str) -> Any:
    if flow == "tensorrt":
        return importlib.import_module("tensorrt_llm._tensorrt_engine").LLM
    return importlib.import_module("tensorrt_llm").LLM


def params(**values: Any) -> Any:
    return importlib.import_module("tensorrt_llm").SamplingParams(**{"end_id": END, "max_tokens": 8} | values)


def test_unknown_arguments_are_refused(scripted: Path) -> None:
    with pytest.raises(ValueError, match="invalid argument: wrong"):
        llm_class("pytorch")(str(scripted), wrong=1)
    with pytest.raises(ValueError, match="specific to TensorRT backend"):
        llm_class("pytorch")(str(scripted), workspace="/tmp")
    llmapi = importlib.import_module("tensorrt_llm.llmapi")
    with pytest.raises(ValueError, match="wrong"):
        llmapi.KvCacheConfig(wrong=1)
    with pytest.raises(TypeError, match="wrong"):
        params(wrong=1)


def test_ranks_cannot_be_spawned_inside_an_mpi_job(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="OMPI_COMM_WORLD_SIZE"):
        llm_class("pytorch")(str(scripted), skip_tokenizer_init=True, tensor_parallel_size=2)
