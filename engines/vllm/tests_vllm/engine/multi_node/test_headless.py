"""A headless machine as a process: its ends, with a worker that sleeps in the place of vLLM's."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls_vllm.multi_node import headless
from openai_bls_vllm.multi_node.nodes import Nodes
from openai_bls_vllm.multi_node.watch import Gathering
from tests.unit.core_support import WAIT_S
from tests_vllm.engine.multi_node.support import machines

MACHINE = """
import json, logging, multiprocessing, signal, sys
from openai_bls_vllm.multi_node import headless
from openai_bls_vllm.multi_node.nodes import Nodes

def sleep():
    worker = multiprocessing.get_context("spawn").Process(target=signal.pause, daemon=True)
    # Deaf to SIGTERM, as one that waits in a collective operation.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    worker.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    print("worker", worker.pid, flush=True)
    return headless.Workers(worker, [worker.sentinel])

def fail():
    raise ValueError("no such model\\nmore")

logging.basicConfig(level=logging.INFO)
headless._KILL_S = 0.2
start = {"workers": sleep, "fail": fail}[sys.argv[2]]
try:
    headless.run(Nodes(**json.loads(sys.argv[1])), start)
except headless.EngineLoadError as error:
    sys.exit(str(error))
"""


class Machine:
    """The second machine of two; the first is here."""

    def __init__(self, made: Gathering, lost: queue.Queue[str], process: subprocess.Popen[str]) -> None:
        self.first = made
        self.lost = lost
        self.process = process

    def said(self, begin: str) -> str:
        """The rest of the next line that begins so."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if line.removeprefix("INFO:openai_bls_vllm.multi_node.headless:").startswith(begin):
                return line.partition(begin)[2].strip()
        raise AssertionError("".join(seen))

    def end(self) -> tuple[int, str]:
        """Exit status, and what else was said."""
        said, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, said


@contextmanager
def machine(start: str = "workers") -> Iterator[Machine]:
    first, second = machines(2)
    lost: queue.Queue[str] = queue.Queue()
    made = Gathering(first)
    made.watch(lost.put)
    fields = {name: getattr(second, name) for name in second.__struct_fields__}
    command = [sys.executable, "-c", MACHINE, str(fields).replace("'", '"'), start]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            made.wait()
            yield Machine(made, lost, process)
        finally:
            made.close()
            process.kill()


def gone(pid: str) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_first_machine_ends() -> None:
    with machine() as second:
        worker = second.said("worker ")
        second.first.close()
        code, said = second.end()
        assert code == 0
        assert "the first machine ends the engine" in said
        assert gone(worker)
        assert second.lost.empty()


def test_the_first_machine_is_gone() -> None:
    with machine() as second:
        worker = second.said("worker ")
        second.first.close(orderly=False)
        code, said = second.end()
        assert code == 1
        assert "the first machine of the engine is gone" in said
        assert gone(worker)


def test_a_worker_dies() -> None:
    with machine() as second:
        worker = second.said("worker ")
        second.said("the workers of machine 1 of 2 are ready")
        os.kill(int(worker), signal.SIGKILL)
        code, said = second.end()
        assert code == 1
        assert said.splitlines()[-1] == "vLLM's workers of machine 1 failed: a worker has died"
        assert "machine 1 of the engine" in second.lost.get(timeout=WAIT_S)


def test_the_machine_is_killed() -> None:
    with machine() as second:
        worker = second.said("worker ")
        try:
            second.process.kill()
            assert "machine 1 of the engine" in second.lost.get(timeout=WAIT_S)
        finally:
            os.kill(int(worker), signal.SIGKILL)


@pytest.mark.parametrize("second_signal", [signal.SIGTERM, signal.SIGINT, None])
def test_a_stop_waits_for_the_first_machine(second_signal: signal.Signals | None) -> None:
    with machine() as second:
        worker = second.said("worker ")
        second.said("the workers of machine 1 of 2 are ready")
        second.process.terminate()
        second.said("stopping once the first machine does")
        assert second.process.poll() is None
        if second_signal is None:
            second.first.close()
        else:
            second.process.send_signal(second_signal)
        code, _ = second.end()
        assert code == (0 if second_signal is None else 128 + second_signal)
        assert gone(worker)


def test_workers_that_cannot_start() -> None:
    with machine("fail") as second:
        code, said = second.end()
        assert code == 1
        assert said.splitlines()[-1] == "vLLM's workers of machine 1 failed: no such model"
        assert "machine 1 of the engine" in second.lost.get(timeout=WAIT_S)


def test_the_first_machine_is_not_headless() -> None:
    with pytest.raises(EngineLoadError, match="node_rank"):
        headless.run(Nodes(nnodes=2, master_addr="127.0.0.1"), lambda: headless.Workers(None, []))
