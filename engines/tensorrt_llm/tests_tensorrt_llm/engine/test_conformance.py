"""The `Engine` contract, held against TensorRT-LLM's engine over the fake package, which answers as the null engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openai_bls.engines.registry import create_engine
from tests.engine_contract.conformance import EngineContract, Started
from tests.engine_contract.support import MAX_MODEL_LEN, NULL_TOKENS, Recorder, SharedProcess
from tests_tensorrt_llm.engine.fake_engines import write_fake_engine
from tests_tensorrt_llm.engine.fake_support import in_process

if TYPE_CHECKING:
    from openai_bls_tensorrt_llm.installed.interface import Flow

# Flows and versions differ in their outputs, and a step may bring several tokens or none.
KINDS: dict[str, tuple[Flow, dict[str, str]]] = {
    "plan": ("tensorrt", {}),
    "plan of 0.20": ("tensorrt", {"version": "0.20.0", "late_final": "1"}),
    "pytorch": ("pytorch", {"step_tokens": "3"}),
}


def write(kind: str, checkpoint: Path, folder: Path) -> Iterator[Path]:
    """An engine's folder; as long as it is used, the fake package is installed."""
    flow, environment = KINDS[kind]
    # Slow enough for what is to be cancelled to run for a while.
    with in_process(tokens=NULL_TOKENS, step_delay_ms="0.5", **environment) as api:
        yield write_fake_engine(folder, checkpoint, flow, api, max_model_len=MAX_MODEL_LEN, max_batch_size=16)


@pytest.fixture(scope="class", params=KINDS)
def written(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    yield from write(request.param, checkpoint, tmp_path_factory.mktemp("tensorrt_llm") / "1")


class TestEngine(EngineContract):
    @pytest.fixture
    def started(self, written: Path) -> Iterator[Started]:
        recorder = Recorder()
        engine = create_engine(written, recorder)
        yield engine, recorder
        engine.close()
        assert recorder.breaches == []


@pytest.fixture(scope="class")
def process(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedProcess]:
    for written in write("pytorch", checkpoint, tmp_path_factory.mktemp("tensorrt_llm") / "1"):
        shared = SharedProcess(written)
        yield shared
        shared.close()


class TestEngineInAProcess(EngineContract):
    @pytest.fixture
    def started(self, process: SharedProcess) -> Iterator[Started]:
        with process.started() as found:
            yield found
