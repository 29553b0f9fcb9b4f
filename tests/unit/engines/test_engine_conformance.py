"""The `Engine` contract, held against the null engine; each engine's tests have it for their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine_contract.conformance import EngineContract, Started
from tests.engine_contract.support import NULL_TOKENS, SharedProcess

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory


class TestNullEngine(EngineContract):
    @pytest.fixture
    def started(self, start: EngineFactory) -> Started:
        return start(engine="null", null_token_ids=NULL_TOKENS)


@pytest.fixture(scope="class")
def process(version_dir: Path) -> Iterator[SharedProcess]:
    # A cancellation takes its time from process to process.
    shared = SharedProcess(version_dir, engine="null", null_token_ids=NULL_TOKENS, null_step_delay_ms="0.5")
    yield shared
    shared.close()


class TestNullEngineInAProcess(EngineContract):
    @pytest.fixture
    def started(self, process: SharedProcess) -> Iterator[Started]:
        with process.started() as found:
            yield found
