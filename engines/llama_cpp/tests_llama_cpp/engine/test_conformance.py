"""The `Engine` contract, held against llama.cpp's engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_bls.engines.registry import create_engine
from tests.engine_contract.conformance import EngineContract, Started
from tests.engine_contract.support import MAX_MODEL_LEN, Recorder
from tests_llama_cpp.engine.llama_cpp_support import needs_llama_cpp, write_engine


@pytest.fixture(scope="class")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_engine(tmp_path_factory.mktemp("llama_cpp") / "1", context=MAX_MODEL_LEN)


@needs_llama_cpp
class TestEngine(EngineContract):
    @pytest.fixture
    def started(self, written: Path) -> Iterator[Started]:
        recorder = Recorder()
        engine = create_engine(written, recorder)
        yield engine, recorder
        engine.close()
        assert recorder.breaches == []
