"""The wheel alone, in an environment of its own, used from a folder that has nothing to do with the source tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

import pytest
from openai import OpenAI

from openai_bls import __version__
from openai_bls.core.manifest import load_manifest
from openai_bls.launcher.tritonserver.ports import Ports, lease_ports
from tests.waiting import lines_until

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = [path for path in sys.path if Path(path).name == "site-packages"] or [sysconfig.get_path("purelib")]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a user who has a home folder and nothing else."""

    folder: Path

    @property
    def workspace(self) -> Path:
        """The repository that the command makes by itself."""
        return self.folder / "home" / ".local" / "share" / "openai_bls" / "model_repository"

    def command(self, *words: str) -> list[str]:
        return [str(self.folder / "env" / "bin" / "openai-bls"), *words]

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_BLS_", "XDG_", "PYTHON"))
        }
        return {**kept, "HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1", **variables}

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.folder / "elsewhere",
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )

    @contextmanager
    def serve(self, ports: Ports, *words: str) -> Iterator[list[str]]:
        """A server, and its lines up to the one that says where it listens."""
        flags = [f"--{name}-port={getattr(ports, name)}" for name in ("http", "grpc", "metrics", "openai")]
        with subprocess.Popen(
            self.command("serve", *flags, *words),
            cwd=self.folder / "elsewhere",
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield lines_until(process.stdout, "Listening: ")
                assert process.poll() is None
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()
        assert process.returncode == 0


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of this source tree: the server's and its engines'."""
    folder = tmp_path_factory.mktemp("wheels")
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    projects = [ROOT, *(path.parent for path in ROOT.glob("engines/*/pyproject.toml"))]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", folder, *projects], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> Path:
    """The wheel of the server."""
    (made,) = wheels.glob("openai_bls-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Installed:
    """The wheels in an environment that has their dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    for name in ("home", "elsewhere"):
        (folder / name).mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    flags = ["--no-deps", "--no-index", "--no-compile", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *flags, *wheels.glob("*.whl")], check=True
    )
    (site_packages,) = (folder / "env" / "lib").glob("python3*/site-packages")
    (site_packages / "_base.pth").write_text("".join(f"{path}\n" for path in PACKAGES))
    return Installed(folder)


def test_what_the_wheel_holds(wheel: Path) -> None:
    """The models' code and the demo, as they are committed; nothing that a build has left in the tree."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for folder in ("model_repository", "demo"):
            carried = {name for name in names if name.startswith(f"openai_bls/{folder}/")}
            listed = subprocess.run(
                [
                    "git",
                    "ls-files",
                    f"{folder}/*/1/model.py" if folder == "model_repository" else f"{folder}/checkpoint",
                ],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            assert carried == {f"openai_bls/{name}" for name in listed}
            for name in carried:
                assert archive.read(name) == (ROOT / name.removeprefix("openai_bls/")).read_bytes()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    assert headers["License-Expression"] == "Apache-2.0"
    assert headers["Author"]
    classifiers = headers.get_all("Classifier") or []
    assert [name for name in classifiers if name.endswith("3.12")]
    assert not [name for name in classifiers if name.endswith("3.13")]
    assert {"server", "smoke"} <= set(headers.get_all("Provides-Extra") or [])


def test_it_is_not_the_source_tree(installed: Installed) -> None:
    python = installed.folder / "env" / "bin" / "python"
    code = "import openai_bls; print(openai_bls.__file__)"
    done = subprocess.run([python, "-c", code], cwd=installed.folder, capture_output=True, text=True, check=True)
    assert Path(done.stdout).is_relative_to(installed.folder)
    assert installed.run("--version").stdout.startswith("openai_bls ")


def test_without_the_extras(installed: Installed, tmp_path: Path) -> None:
    """An environment with the library's own dependencies alone: one sentence, and nothing is written."""
    gone = ("torch", "transformers", "pytriton", "openai")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name in {gone} else find(name, *rest)\n"
        f"sys.modules.update(dict.fromkeys({gone}))\n"
    )
    hidden = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "XDG_DATA_HOME": str(tmp_path / "data")}
    server = f"openai_bls-{__version__}-py3-none-any.whl"
    for command, status, said in (
        ("serve", 2, f"pip install '{server}[server]'"),
        ("build", 2, f"pip install {server} openai_bls_transformers-{__version__}-py3-none-any.whl"),
        ("smoke", 2, f"pip install '{server}[smoke]'"),
    ):
        done = installed.run(command, **hidden)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
        assert said in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_repository_that_is_named_is_not_filled_with_a_toy(installed: Installed, tmp_path: Path) -> None:
    done = installed.run("serve", "--model-repository", str(tmp_path / "models"))
    assert done.returncode == 2
    assert "`openai-bls build --model <checkpoint>" in done.stderr
    assert not (tmp_path / "models").exists()


@pytest.mark.triton
def test_serve_and_nothing_else(installed: Installed) -> None:
    """The demo, made, built and asked; then the same again, and another model in its place."""
    with lease_ports() as ports:
        with installed.serve(ports) as lines:
            said = "".join(lines)
            assert "added: openai_bls" in said
            assert "so this serves the demo" in said
            client = OpenAI(base_url=f"http://127.0.0.1:{ports.openai}/v1", api_key="none", max_retries=0)
            messages = [{"role": "user", "content": "What colour is the sky?"}]
            answer = client.chat.completions.create(model="demo", messages=messages)  # type: ignore[arg-type]
            assert answer.choices[0].message.content == (
                "The sky is blue because air scatters blue light more than red light."
            )
        assert {path.name for path in installed.workspace.iterdir() if path.is_dir()} == {
            "ensemble", "openai_bls", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls",
        }  # fmt: skip
        report = json.loads(installed.run("doctor", "--json", f"--openai-port={ports.openai}").stdout)
        found = {check["name"]: check["status"] for check in report["checks"]}
        assert (found["model repository"], found["engine"]) == ("ok", "ok")
        assert report["model_repository"] == str(installed.workspace)


def test_a_model_is_built_once(installed: Installed) -> None:
    """`--model` builds what is not there. The ports are taken, so that no server starts."""
    mine = installed.folder / "mine"
    shutil.copytree(ROOT / "demo" / "checkpoint", mine)
    repository = installed.folder / "repository"
    done = installed.run("build", "--engine", "null", "--model", str(mine), "--model-repository", str(repository))
    assert done.returncode == 0, done.stderr
    assert "added: tensorrt_llm" in done.stdout
    built = load_manifest(repository / "tensorrt_llm" / "1")
    assert built.builder["model"] == str(mine)
    done = installed.run("build", "--engine", "null", "--model", str(mine), "--model-repository", str(repository))
    assert "is up to date" in done.stdout
