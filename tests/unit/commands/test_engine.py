"""Command `engine`, as a container runs it: its process, its health check, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.core_support import WAIT_S
from tests.waiting import lines_until


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "openai_bls", "engine", *arguments]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run(
        words(*arguments), env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Of a null engine."""
    folder = tmp_path / "tensorrt_llm" / "1"
    folder.mkdir(parents=True)
    manifest = {"engine": "null", "model_name": "null", "max_model_len": 100, "max_batch_size": 4, "created": 0}
    (folder / "engine.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command, once its engine is ready."""
    with subprocess.Popen(
        words(*arguments),
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            lines_until(running.stderr, "is ready")
            yield running
        finally:
            running.terminate()
            running.communicate(timeout=WAIT_S)


def test_a_socket_and_its_health_check(tmp_path: Path, model_dir: Path) -> None:
    socket = str(tmp_path / "run" / "engine.sock")
    with process("--model-dir", str(model_dir), "--socket", socket):
        done = run("--status", "--socket", socket)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
    done = run("--status", "--socket", socket)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"no engine's process answers at unix:{socket}: No such file or directory\n"


def test_the_engine_has_an_interpreter_of_its_own(tmp_path: Path, model_dir: Path) -> None:
    """An environment of the library's own starts the engine with the Python that has its packages."""
    ran = tmp_path / "ran"
    other = tmp_path / "bin" / "python-of-the-engine"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\necho "$0" >> {ran}\nexec {sys.executable} "$@"\n', encoding="utf-8")
    other.chmod(0o755)
    socket = ("--socket", str(tmp_path / "engine.sock"))
    path = f"{other.parent}{os.pathsep}{os.environ['PATH']}"
    with process("--model-dir", str(model_dir), *socket, OPENAI_BLS_ENGINE_PYTHON=other.name, PATH=path):
        pass
    with process("--model-dir", str(model_dir), *socket, "--engine-python", str(other)):
        pass
    assert ran.read_text(encoding="utf-8").splitlines() == [str(other)] * 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--socket", "/nowhere/engine.sock"), "--model-dir is needed"),
        (("--model-dir", ".", "--socket", "s", "--engine-python", "/nowhere/python"), "no interpreter /nowhere/python"),
        (("--model-dir", "."), "one of the arguments --socket --headless is required"),
        (("--status", "--headless"), "listens nowhere"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_without_workers_elsewhere(model_dir: Path) -> None:
    done = run("--model-dir", str(model_dir), "--headless")
    assert done.returncode == 2
    assert "--headless is for engines over several machines (vllm)" in done.stderr
