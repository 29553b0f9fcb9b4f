"""Number of an engine's ranks, and their GPUs in a job of trtllm-llmapi-launch."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.engines.plugin import Ranks
from openai_bls.launcher.ranks import llmapi_launch
from openai_bls_tensorrt_llm.legacy.ranks.llmapi_launch import PROXY_VARIABLE
from openai_bls_tensorrt_llm.loading import check_gpus
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from openai_bls_tensorrt_llm.server_checks import ranks


class _Gpus:
    def gpus(self) -> list[str]:
        return ["GPU"] * 8


def test_the_launcher_sets_the_variable_that_the_engine_reads() -> None:
    assert PROXY_VARIABLE == llmapi_launch.PROXY_VARIABLE


@pytest.mark.parametrize("backend", ["python", "cpp"])
def test_ranks_of_an_engine(backend: Literal["python", "cpp"]) -> None:
    """Those of the C++ backend are started by the server, one for each."""
    record = TensorRtLlmRecord("1.2.1", 2, 3, backend=backend)
    manifest = Manifest("tensorrt_llm", "m", 9, 1, 1, record=record.fields())
    assert ranks(manifest) == Ranks(6, backend == "cpp")


def test_ranks_on_other_machines_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    record = TensorRtLlmRecord(version="1.2.1", flow="pytorch", tensor_parallel_size=8, pipeline_parallel_size=2)
    gpus: Any = _Gpus()
    with pytest.raises(EngineLoadError, match="the engine needs 16 GPUs"):
        check_gpus(record, gpus)
    monkeypatch.setenv(PROXY_VARIABLE, "1")
    check_gpus(record, gpus)
