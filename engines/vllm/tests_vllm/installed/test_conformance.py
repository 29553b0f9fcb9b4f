"""The part of the `Engine` contract that closes no engine, held against vLLM, whose engine serves all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_contract import support
from tests.engine_contract.conformance import RequestContract, Started
from tests.engine_contract.support import Recorder
from tests_vllm.installed.conftest import LIMIT_S, Served

pytestmark = pytest.mark.timeout(1800)


class TestEngine(RequestContract):
    @pytest.fixture
    def started(self, vllm: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
        monkeypatch.setattr(support, "PATIENCE_S", LIMIT_S)
        recorder = Recorder()
        vllm.engine._on_step = recorder
        yield vllm.engine, recorder
        assert recorder.breaches == []
