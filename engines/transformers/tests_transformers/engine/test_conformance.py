"""The `Engine` contract, held against the embedded engine: both runners, and a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine_contract.conformance import EngineContract, Started
from tests.engine_contract.support import SharedProcess

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory


class TestEngine(EngineContract):
    @pytest.fixture(params=["auto", "dynamic_cache"])
    def started(self, request: pytest.FixtureRequest, start: EngineFactory) -> Started:
        return start(engine="transformers", runner=request.param)


@pytest.fixture(scope="class")
def process(version_dir: Path) -> Iterator[SharedProcess]:
    shared = SharedProcess(version_dir, engine="transformers", num_threads="1")
    yield shared
    shared.close()


class TestEngineInAProcess(EngineContract):
    @pytest.fixture
    def started(self, process: SharedProcess) -> Iterator[Started]:
        with process.started() as found:
            yield found
