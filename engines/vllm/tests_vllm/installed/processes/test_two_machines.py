"""The real vLLM over two machines on loopback: `openai-bls engine` on the first one, `--headless` on the second.

The second machine's worker is killed under load: that is an error to all requests at once, and the end of both. Started
again they answer again, to the engine that was connected before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.support.asking import Asker
from openai_bls.launcher.tritonserver.ports import lease_ports
from openai_bls.transport.engine_process.address import parse
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.source import RemoteProcess
from tests_vllm.installed.conftest import LIMIT_S, SILENCE_S, Served
from tests_vllm.installed.processes.family import Family
from tests_vllm.installed.test_golden import golden_requests
from tests_vllm.vllm_python import vllm_python

STREAMS = 6
Start = Callable[[], list[subprocess.Popen[bytes]]]


@pytest.fixture
def start(two_ranks: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts both machines; the first one listens on `engine.sock`, and their logs are `0.log` and `1.log`."""
    network = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    running: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        # Below the range of outgoing connections: vLLM binds it seconds after it was chosen, here and after a restart.
        port = stack.enter_context(lease_ports()).http

        def machine(rank: int, place: list[str]) -> subprocess.Popen[bytes]:
            options = ["nnodes=2", f"node_rank={rank}", "master_addr=127.0.0.1", f"master_port={port}"]
            words = [word for option in options for word in ("--option", option)]
            log = stack.enter_context((tmp_path / f"{rank}.log").open("ab"))
            process = subprocess.Popen(
                [sys.executable, "-m", "openai_bls", "engine", "--model-dir", str(two_ranks), *place, *words],
                env={**os.environ, **network, "OPENAI_BLS_ENGINE_PYTHON": vllm_python()},
                stdout=log,
                stderr=log,
            )
            running.append(process)
            # The guardian takes along what it has started; the second machine waits for the first.
            stack.callback(process.wait, LIMIT_S)
            return process

        def both() -> list[subprocess.Popen[bytes]]:
            return [machine(0, ["--socket", str(tmp_path / "engine.sock")]), machine(1, ["--headless"])]

        try:
            yield both
        finally:
            for process in running:
                process.terminate()


@pytest.mark.distributed
@pytest.mark.timeout(3600)
def test_a_worker_of_the_second_machine_is_killed(start: Start, tmp_path: Path) -> None:
    machines, asker = start(), Asker()
    source = RemoteProcess(parse(f"unix:{tmp_path / 'engine.sock'}"), LIMIT_S)
    asker.engine = engine = ProcessEngine(source, asker.on_step, SILENCE_S)
    served = Served(engine, asker)
    requests, wanted, tokenizer = golden_requests(engine.info)

    def check() -> None:
        answers = served.ask(requests)
        assert [tokenizer.decode(answer.tokens, skip_special_tokens=True) for answer in answers] == wanted

    try:
        check()
        families = [Family(process.pid) for process in machines]
        live = served.streams(STREAMS)
        os.kill(families[1].the_one("VLLM::Worker"), signal.SIGKILL)
        asker.wait(LIMIT_S)
        assert {answer.reason for answer in live} == {"error"}
        assert [process.wait(LIMIT_S) for process in machines] == [3, 2]
        for family in families:
            family.wait_end(LIMIT_S)
            assert family.left() == []
        said = (tmp_path / "1.log").read_text(encoding="utf-8", errors="replace")
        assert "openai_bls: error: vLLM's workers of machine 1 failed: a worker has died" in said

        again = start()
        served.wait_attached()
        check()
        again[0].terminate()
        again[1].terminate()
        assert [process.wait(LIMIT_S) for process in again] == [0, 0]
    finally:
        engine.close()
