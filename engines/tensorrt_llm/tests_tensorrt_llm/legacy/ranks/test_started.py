"""GPUs of an engine's ranks in a job of trtllm-llmapi-launch."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls_tensorrt_llm.legacy.ranks.started import PROXY_VARIABLE
from openai_bls_tensorrt_llm.loading import check_gpus
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord


class _Gpus:
    def gpus(self) -> list[str]:
        return ["GPU"] * 8


def test_ranks_on_other_machines_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    record = TensorRtLlmRecord(version="1.2.1", flow="pytorch", tensor_parallel_size=8, pipeline_parallel_size=2)
    gpus: Any = _Gpus()
    with pytest.raises(EngineLoadError, match=" 16 GPUs"):
        check_gpus(record, gpus)
    monkeypatch.setenv(PROXY_VARIABLE, "1")
    check_gpus(record, gpus)
