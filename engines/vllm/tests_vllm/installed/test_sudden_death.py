"""Death of vLLM's engine core; the last test here, since nothing is answered after it."""

from __future__ import annotations

import os
import signal

import pytest

from tests_vllm.installed import cases
from tests_vllm.installed.conftest import LIMIT_S, Served


@pytest.mark.timeout(1800)
def test_a_dead_engine_core_ends_all_requests_with_an_error(vllm: Served) -> None:
    live = vllm.streams(32)
    os.kill(vllm.family().the_one("VLLM::EngineCore"), signal.SIGKILL)
    vllm.asker.wait(LIMIT_S)
    assert {answer.reason for answer in live} == {"error"}
    assert all(answer.error for answer in live)
    (late,) = vllm.ask([cases.asked(cases.prompt(0), 4)])
    assert late.reason == "error"
