"""The guardian over the real mpirun, whose ranks are small scripts: who is told what when, and what is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openai_bls.launcher.tritonserver import process
from openai_bls.launcher.tritonserver.process import ServerProcess
from openai_bls_tensorrt_llm.legacy.ranks.job_log import MpiJobLog
from openai_bls_tensorrt_llm.legacy.ranks.mpi_job import MpiJob, find_mpirun
from tests.waiting import PATIENCE_S, until

# A rank writes down what happens to it, and leaves on SIGTERM; `RANK_<n>` tells it otherwise.
RANK = """
import os, pathlib, signal, sys
rank = os.environ["OMPI_COMM_WORLD_RANK"]
folder = pathlib.Path(os.environ["RANK_FOLDER"])
def note(what):
    with (folder / "events").open("a") as file:
        file.write(f"{rank} {what}\\n")
def leave(*_):
    note("told")
    if os.environ.get(f"RANK_{rank}") != "stubborn":
        note("leaves")
        os._exit(int(os.environ.get(f"RANK_{rank}", "0")))
signal.signal(signal.SIGTERM, leave)
(folder / f"pid{rank}.new").write_text(str(os.getpid()))
(folder / f"pid{rank}.new").rename(folder / f"pid{rank}")
while True:
    signal.pause()
"""


class Job:
    """Two ranks that run."""

    def __init__(self, folder: Path, **behaviour: str) -> None:
        self.folder = folder
        script = folder / "rank.py"
        script.write_text(RANK)
        # An mpirun that is killed leaves a folder behind, which shall lie where pytest clears up.
        environment = {**os.environ, "RANK_FOLDER": str(folder), "TMPDIR": str(folder), **behaviour}
        job = MpiJob(find_mpirun(environment), 2, ("engine",), options=("--bind-to", "none", "--oversubscribe"))
        command = [sys.executable, "-I", "-S", str(script)]
        self.process = ServerProcess(command, environment, folder / "log", job)
        until(lambda: (folder / "pid0").exists() and (folder / "pid1").exists())

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(int((self.folder / f"pid{rank}").read_text()), number)

    @property
    def events(self) -> list[str]:
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def finish(self) -> int:
        code = self.process.wait(PATIENCE_S)
        assert self.process.leftovers() == []
        return code

    def reason(self) -> str | None:
        watcher = MpiJobLog(2)
        for line in (self.folder / "log").read_text().splitlines():
            watcher.feed(line)
        return watcher.reason()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(**behaviour: str) -> Job:
        jobs.append(Job(tmp_path, **behaviour))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.process.kill()
        job.process.stop()
        assert job.process.leftovers() == []


@pytest.mark.parametrize("drain", [True, False])
def test_rank_0_leaves_first(start: Callable[..., Job], drain: bool) -> None:
    """Told by a drain, or by others."""
    job = start()
    if drain:
        job.process.drain()
    else:
        job.signal(0, signal.SIGTERM)
    assert job.finish() == 0
    assert job.events == ["0 told", "0 leaves", "1 told", "1 leaves"]
    assert job.reason() is None


def test_the_others_run_as_long_as_rank_0_drains(start: Callable[..., Job]) -> None:
    job = start(RANK_0="stubborn")
    job.process.drain()
    until(lambda: job.events == ["0 told"])
    # A second order kills, whatever they do.
    job.process.drain()
    assert job.finish() == 128 + signal.SIGKILL
    assert job.events == ["0 told"]


def test_a_rank_that_does_not_follow_is_ended_and_the_end_is_still_a_good_one(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "FOLLOW_SECONDS", 0.2)
    job = start(RANK_1="stubborn")
    job.process.drain()
    assert job.finish() == 0
    assert "ranks that went on without rank 0 are ended" in (job.folder / "log").read_text()


def test_the_exit_code_of_rank_0_is_that_of_the_whole(start: Callable[..., Job]) -> None:
    job = start(RANK_0="3")
    job.process.drain()
    assert job.finish() == 3
    assert job.reason() == "rank 0 of 2 ended with exit code 3, and the others were stopped"


def test_a_killed_rank_ends_the_whole(start: Callable[..., Job]) -> None:
    job = start()
    job.signal(1, signal.SIGKILL)
    assert job.finish() == 128 + signal.SIGKILL
    reason = job.reason()
    assert reason is not None
    assert reason.startswith("rank 1 of 2")
    assert "signal 9 (Killed)" in reason


def test_a_rank_that_leaves_with_0_ends_the_whole(start: Callable[..., Job]) -> None:
    job = start()
    job.signal(1, signal.SIGTERM)
    assert job.finish() == 1
    assert job.reason() == "rank 1 of 2 ended, and the others were stopped"
    assert job.events == ["1 told", "1 leaves", "0 told", "0 leaves"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("kill", "code"),
    [
        (lambda job: job.process.kill(), 128 + signal.SIGKILL),
        (lambda job: os.kill(parent(job.process.pid), signal.SIGKILL), -signal.SIGKILL),
        (lambda job: os.kill(job.process.pid, signal.SIGKILL), 128 + signal.SIGKILL),
    ],
    ids=["by order", "guardian", "mpirun"],
)
def test_a_kill_leaves_nothing(start: Callable[..., Job], kill: Callable[[Job], None], code: int) -> None:
    job = start(RANK_0="stubborn", RANK_1="stubborn")
    kill(job)
    assert job.finish() == code
