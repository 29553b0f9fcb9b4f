"""Engines in real processes, in interpreters that have next to nothing: their start, their death, and what is left."""

from __future__ import annotations

import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.processes.machine import SERVER_MARK
from openai_bls.core.processes.process_tree import marked_processes
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.registry import VARIABLE as PLUGINS_VARIABLE
from openai_bls.engines.registry import passed_on
from openai_bls.transport.engine_process import loading
from openai_bls.transport.engine_process import source as sources
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.process import BOOTSTRAP, environment
from openai_bls.transport.engine_process.source import ClosedError, StartedProcess
from tests.unit.transport.engine_process.local_source import Taken, request
from tests.waiting import until

ROOT = Path(__file__).parents[4]
NULL = {"engine": "null", "null_step_delay_ms": "5"}
# A process of the engine's own, in a session of its own, and shared memory.
CHILD = """
import mmap, os, subprocess, sys
region = os.environ.get("WITH_CHILD")
if region and "bootstrap.py" in " ".join(sys.orig_argv):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(f"{region}-{os.getpid()}", "w+b") as file:
        file.truncate(1)
        mapped = mmap.mmap(file.fileno(), 1)
"""
IMPORTS = """
import json, runpy, sys
sys.argv = [sys.argv[1]]
before = set(sys.modules)
runpy.run_path(sys.argv[0])
import openai_bls.commands.engine, openai_bls.engines.null.loading, openai_bls.transport.engine_process.worker
packages = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(packages - set(sys.stdlib_module_names))))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with msgspec and numpy, and nothing else."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for module in (msgspec, np):
        source = Path(module.__file__ or "").parent
        (packages / source.name).symlink_to(source)
        for libraries in source.parent.glob(f"{source.name}.libs"):
            (packages / libraries.name).symlink_to(libraries)
    (packages / "sitecustomize.py").write_text(CHILD)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter without any package."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


class World:
    """Processes of one test, known by a mark."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.region = Path(f"/dev/shm/openai_bls-{self.mark}")
        self.environ = dict(os.environ) | {SERVER_MARK: self.mark, "WITH_CHILD": str(self.region)}
        self.taken = Taken()
        self.engines: list[ProcessEngine] = []
        self.leavings: list[Path] = []
        """Temporary folder and shared memory of each first process."""

    def source(self, python: Path | str, version_dir: Path = Path("/nowhere"), limit: int = 2) -> StartedProcess:
        words = loading.arguments(version_dir, NULL if version_dir == Path("/nowhere") else {}, EngineSettings())
        return StartedProcess(str(python), words, limit, self.environ)

    def start(self, python: Path | str, silence_s: float = 60.0) -> tuple[ProcessEngine, StartedProcess]:
        source = self.source(python)
        engine = ProcessEngine(source, self.taken, silence_s)
        self.engines.append(engine)
        variables = Path(f"/proc/{source.pid}/environ").read_text(encoding="utf-8").split("\0")
        (folder,) = [Path(one.partition("=")[2]) for one in variables if one.startswith("TMPDIR=")]
        self.leavings = [folder, Path(f"{self.region}-{source.pid}")]
        assert all(path.exists() for path in self.leavings)
        # Its socket is where no other user can take the name first.
        assert stat.S_ISSOCK((folder / "engine.sock").stat().st_mode)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        return engine, source

    def processes(self) -> list[int]:
        return marked_processes(self.mark)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for engine in made.engines:
        engine.close()
    assert made.processes() == []
    assert not [path for path in made.leavings if path.exists()]
    # Of processes that were killed while they loaded.
    for path in made.region.parent.glob(f"{made.region.name}-*"):
        path.unlink()


def test_the_process_imports_what_an_engine_needs_and_no_more(bare: Path) -> None:
    command = [str(bare), "-c", IMPORTS, str(BOOTSTRAP)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    # numpy has modules of Cython's.
    names = {name for name in json.loads(found) if "cython" not in name}
    assert names <= {"msgspec", "openai_bls", "numpy", "typing_extensions"}


def test_an_engine_in_a_bare_interpreter(world: World, bare: Path) -> None:
    engine, _ = world.start(bare)
    assert engine.info.engine == "null"
    engine.submit(request(1))
    assert world.taken.wait_end(1).finish_reason == "length"
    # Guardian, process and the process's own.
    until(lambda: len(world.processes()) == 3)
    engine.close()
    assert world.processes() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_is_back_and_leaves_nothing(
    world: World, bare: Path, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    engine, source = world.start(bare)
    before = set(world.processes())
    engine.submit(msgspec.structs.replace(request(1), max_tokens=5000))
    assert source.pid is not None
    os.kill(source.pid, number)
    assert world.taken.wait_end(1).finish_reason == "error"
    until(lambda: engine.stats().restarts == 1)
    assert not before & set(world.processes())
    engine.submit(request(2))
    assert world.taken.wait_end(2).finish_reason == "length"
    assert ("memory runs out" in caplog.text) == (number == signal.SIGKILL)


def test_a_guardian_that_dies_leaves_nothing(world: World, bare: Path) -> None:
    engine, source = world.start(bare)
    before = set(world.processes())
    assert source._process is not None
    source._process._guardian.kill()
    until(lambda: engine.stats().restarts == 1)
    assert not before & set(world.processes())


def test_a_process_that_hangs_is_replaced(world: World, bare: Path) -> None:
    engine, source = world.start(bare, silence_s=1.0)
    assert source.pid is not None
    os.kill(source.pid, signal.SIGSTOP)
    until(lambda: engine.stats().restarts == 1)
    engine.submit(request(1))
    assert world.taken.wait_end(1).finish_reason == "length"


def test_an_engine_that_fails_is_started_again(world: World, bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = loading.arguments(Path("/nowhere"), NULL | {"null_crash_at_step": "3"}, EngineSettings())
    engine = ProcessEngine(StartedProcess(str(bare), words, 2, world.environ), world.taken, 60)
    world.engines.append(engine)
    engine.submit(msgspec.structs.replace(request(1), max_tokens=5000))
    assert world.taken.wait_end(1).finish_reason == "error"
    until(lambda: engine.stats().restarts == 1)
    assert "the engine has failed, and its process with it" in caplog.text


def refused(world: World, python: Path | str, version_dir: Path = Path("/nowhere")) -> str:
    with pytest.raises(EngineLoadError) as refusal:
        ProcessEngine(world.source(python, version_dir), world.taken, 60)
    assert len(str(refusal.value).splitlines()) == 1
    assert world.processes() == []
    return str(refusal.value)


def test_interpreters_that_cannot_run_an_engine(world: World, empty: Path, tmp_path: Path) -> None:
    assert "package msgspec: run `" in refused(world, empty)
    assert "no interpreter /no/python, which engine_python names" in refused(world, "/no/python")
    assert "PATH" in refused(world, "venv/bin/python")
    assert "exit status 1" in refused(world, "/bin/false")
    odd = tmp_path / "python"
    odd.write_text("#!/bin/sh\necho something odd\nkill -KILL $$\n")
    odd.chmod(0o755)
    assert refused(world, odd).endswith("as Linux does when memory runs out; its last line: something odd")


def test_engines_that_cannot_be_loaded(world: World, bare: Path, tmp_path: Path) -> None:
    assert "no engine in" in refused(world, bare, tmp_path)
    (tmp_path / "engine.json").write_text("{")
    assert "is not readable" in refused(world, bare, tmp_path)
    (tmp_path / "engine.json").write_text(
        '{"engine":"transformers","model_name":"m","max_model_len":9,"max_batch_size":1,"created":1}'
    )
    (tmp_path / "checkpoint").mkdir()
    assert "package torch" in refused(world, bare, tmp_path)


def test_a_start_can_be_given_up(world: World, tmp_path: Path) -> None:
    """By a model that is unloaded while the process hangs before its first word."""
    odd = tmp_path / "python"
    odd.write_text("#!/bin/sh\nexec sleep 1000\n")
    odd.chmod(0o755)
    closing = threading.Event()
    threading.Timer(0.2, closing.set).start()
    with pytest.raises(ClosedError):
        world.source(odd).open(closing, 0)
    assert world.processes() == []


@pytest.mark.parametrize("stop", ["kill -STOP $$", "sleep 1000 & kill -STOP $!; wait"], ids=["itself", "its own"])
def test_a_process_that_is_stopped_while_it_loads(
    world: World, tmp_path: Path, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_STOPPED_S", 0.1)
    odd = tmp_path / "python"
    odd.write_text(f"#!/bin/sh\n{stop}\n")
    odd.chmod(0o755)
    assert refused(world, odd) == "a process of the engine was stopped (SIGSTOP) while it loaded"


def test_environment_of_the_process() -> None:
    base = {
        "PATH": "/bin",
        "HOME": "/root",
        "PYTHONPATH": "/ours",
        "LD_LIBRARY_PATH": "/wheel:/cuda",
        "OPENAI_BLS_OUTER_LD_LIBRARY_PATH": "/cuda",
        "OPENAI_BLS_API_KEY": "secret",
        "OPENAI_BLS_ENGINE_NULL_ECHO": "true",
        "OPENAI_BLS_VERIFY_WEIGHTS": "true",
        "OMPI_COMM_WORLD_RANK": "0",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    assert environment("/venv/bin/python", base) == {
        PLUGINS_VARIABLE: passed_on(),
        "PATH": "/venv/bin:/bin",
        "HOME": "/root",
        "LD_LIBRARY_PATH": "/cuda",
        "PYTHONUNBUFFERED": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    assert environment(sys.executable, base)["PYTHONPATH"] == "/ours"
