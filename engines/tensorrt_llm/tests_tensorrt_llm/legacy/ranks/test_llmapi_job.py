"""The process around a job of `trtllm-llmapi-launch`, which goes on without its command: what ends what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until

# Says that it runs, and what it was told.
SERVED = """
import os, pathlib, signal
folder = pathlib.Path(os.environ["JOB_FOLDER"])
def told(*_):
    (folder / "told").touch()
    if not (folder / "stubborn").exists():
        os._exit(0)
signal.signal(signal.SIGTERM, told)
(folder / "pid.new").write_text(str(os.getpid()))
(folder / "pid.new").rename(folder / "pid")
while True:
    signal.pause()
"""
# Waits for ever, as the leader node does.
JOB = 'echo $$ > "$JOB_FOLDER/job"; "$@" & exec tail -f /dev/null'


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "served.py"
    script.write_text(SERVED)
    served = [sys.executable, "-I", "-S", str(script)]
    words = ["sh", "-c", JOB, "job", *served]
    imported = "import sys; from openai_bls_tensorrt_llm.legacy.ranks.llmapi_job import run"
    run = f"{imported}; sys.exit(run({words}, {served}, follow_s=0.0))"
    environment = {**os.environ, "JOB_FOLDER": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", run], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    # Says that it has found the process.
    assert b"rank 0 runs as process" in process.stdout.readline()
    until((tmp_path / "pid").exists)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def has_ended(folder: Path) -> bool:
    return not Path(f"/proc/{(folder / 'job').read_text().strip()}").exists()


def test_a_stop_is_for_what_is_served(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    job.send_signal(signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 0
    assert (tmp_path / "told").exists()
    assert has_ended(tmp_path)


def test_a_second_stop_is_for_the_job(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "stubborn").touch()
    job.send_signal(signal.SIGTERM)
    until((tmp_path / "told").exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 0
    assert has_ended(tmp_path)


def test_the_job_ends_with_what_it_serves(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert job.wait(PATIENCE_S) == 1
    assert has_ended(tmp_path)


def test_the_job_ends_with_the_process_around_it(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    job.kill()
    until(lambda: has_ended(tmp_path))
