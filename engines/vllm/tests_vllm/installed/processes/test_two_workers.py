"""The real vLLM with tensor_parallel_size=2 on one machine: the answers of one process, and the death of a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.support.asking import Asker
from openai_bls.core.settings import EngineSettings
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.loading import arguments
from openai_bls.transport.engine_process.source import StartedProcess
from tests_vllm.installed import cases
from tests_vllm.installed.conftest import LIMIT_S, SILENCE_S, Served
from tests_vllm.installed.test_exact import compare
from tests_vllm.installed.test_golden import golden_requests
from tests_vllm.vllm_python import vllm_python

STREAMS = 32


@pytest.fixture(scope="module")
def two_workers(two_ranks: Path) -> Iterator[Served]:
    asker = Asker()
    source = StartedProcess(vllm_python(), arguments(two_ranks, {}, EngineSettings()), 2)
    asker.engine = engine = ProcessEngine(source, asker.on_step, SILENCE_S)
    yield Served(engine, asker, source)
    engine.close()


@pytest.mark.distributed
@pytest.mark.timeout(1800)
def test_answers_and_a_worker_that_is_killed(two_workers: Served, embedded: Asker) -> None:
    requests, wanted, tokenizer = golden_requests(two_workers.engine.info)
    shaped = cases.shaped()

    def check() -> None:
        answers = two_workers.ask(requests)
        assert [tokenizer.decode(answer.tokens, skip_special_tokens=True) for answer in answers] == wanted

    check()
    compare(two_workers.ask(shaped), embedded.ask(shaped, LIMIT_S))

    first = two_workers.family()
    live = two_workers.streams(STREAMS)
    os.kill(first.the_one("VLLM::Worker_TP1"), signal.SIGKILL)
    two_workers.asker.wait(LIMIT_S)
    assert {answer.reason for answer in live} == {"error"}
    first.wait_end(LIMIT_S)
    assert first.left() == []

    two_workers.wait_attached()
    assert two_workers.engine.stats().restarts == 1
    check()
    second = two_workers.family()
    assert len(second.files) > 1
    two_workers.engine.close()
    second.wait_end(LIMIT_S)
    assert second.left() == []
