"""Builds that are stopped or killed, as the processes that they are."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.manifest import BuildError, load_manifest
from tests.paths import ROOT
from tests.unit.builder.repositories import contents, leftovers, make_repository
from tests.waiting import PATIENCE_S, lines_until
from tests_tensorrt_llm.recipe.build_support import Machine, make_checkpoint


class Running:
    """`build/engine.py` over an engine that is there, held where its worker begins to build."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.repository = make_repository(folder / "model_repository")
        self.source = make_checkpoint(folder / "source" / "tiny")
        build(BuildOptions(str(self.source), self.repository, engine="null"), print)
        self.before = contents(self.repository)
        # The fake opens this to write down what it was called with, which waits for a reader.
        hold = folder / "hold"
        os.mkfifo(hold)
        machine.set(FAKE_TENSORRT_LLM_CALLS=str(hold))
        what = ["--engine", "tensorrt_llm", "--flow", "tensorrt", "--model", str(self.source)]
        what += ["--model-repository", str(self.repository)]
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "build" / "engine.py"), *what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines_until(self.process.stdout, "loading and converting")
        self.worker = self._child(lambda command: b"openai_bls_tensorrt_llm.recipe.worker.main\0build" in command)
        self.guardian = self._child(lambda command: b"guardian.py" in command)

    def _child(self, is_it: Callable[[bytes], bool]) -> int:
        mine = str(self.repository.parent).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    first, _, rest = command.partition(b"\0")
                    is_guardian = rest.startswith((b"-I", first)) and b"guardian.py" in command
                    if mine in command and is_it(command) and is_guardian == is_it(b"guardian.py"):
                        return int(entry.name)
        raise AssertionError("it does not run")

    def end(self) -> tuple[int, str]:
        """Exit code, and what was written to standard error."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


@pytest.fixture
def running(machine: Machine, tmp_path: Path) -> Iterator[Running]:
    found = Running(machine, tmp_path)
    yield found
    if found.process.poll() is None:
        found.process.kill()
    found.process.communicate()


@contextlib.contextmanager
def outlived(*pids: int) -> Iterator[None]:
    """All of these processes have ended a while after the block."""
    with contextlib.ExitStack() as stack:
        ends = [os.pidfd_open(pid) for pid in pids]
        for end in ends:
            stack.callback(os.close, end)
        yield
        for end in ends:
            assert select.select([end], [], [], PATIENCE_S)[0]


def test_a_killed_worker(running: Running) -> None:
    with outlived(running.guardian):
        os.kill(running.worker, signal.SIGKILL)
    code, said = running.end()
    assert code == 2
    assert "host memory" in said
    assert contents(running.repository) == running.before
    assert not leftovers(running.repository)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_build(machine: Machine, running: Running, number: signal.Signals) -> None:
    """Nothing runs on, nothing stays behind."""
    with outlived(running.worker, running.guardian):
        running.process.send_signal(number)
    code, said = running.end()
    assert (code, said) == (130, "build/engine.py: stopped; the engine that was there is still there\n")
    assert contents(running.repository) == running.before
    assert not leftovers(running.repository)
    assert not any(machine.temporary.iterdir())


def test_a_killed_build(running: Running) -> None:
    """It takes its worker along; what it had in hand is removed by the next one."""
    with outlived(running.worker, running.guardian):
        running.process.kill()
    running.end()
    now = {path: text for path, text in contents(running.repository).items() if "/.aside-" not in path}
    assert now == running.before
    assert load_manifest(running.repository / "tensorrt_llm" / "1").engine == "null"
    assert leftovers(running.repository)
    with pytest.raises(BuildError, match="--max-batch-size"):
        build(BuildOptions(str(running.source), running.repository, engine="null", max_batch_size=0), print)
    assert contents(running.repository) == running.before
    assert not leftovers(running.repository)
