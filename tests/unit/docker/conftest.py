"""The images, as far as they can be made without a Docker engine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.docker import wheels
from tests.unit.docker.replay import Image, Replay, is_root, stand_in_for_install

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Index:
    """What pip finds in the place of a package index: wheels of what is installed here."""

    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        """The environment for pip: this folder, no network, no settings of this machine."""
        return {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_FIND_LINKS": str(self.folder),
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_INDEX": "1",
        }


@pytest.fixture(scope="package")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index with the build backend and the writer of SBOMs; the fixture `replay` adds what the library needs."""
    folder = tmp_path_factory.mktemp("index")
    wheels.fill(folder, ["hatchling", "cyclonedx-bom"])
    return Index(folder)


def stand_in(folder: Path, *, leave_out: str = "", only: str = "") -> Path:
    """A Python environment in the place of a base image's; its site-packages.

    Args:
        folder: where to make it.
        leave_out: prefix of the packages of this environment that it shall not have.
        only: prefix of the packages of this environment that it shall have, if not all of them.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    wheels.link_site_packages(folder / "shared", leave_out=leave_out, only=only)
    site_packages = next(folder.glob("lib/python3*/site-packages"))
    (site_packages / "shared.pth").write_text(f"{folder / 'shared'}\n")
    return site_packages


def empty_image(root: Path, environment: Path) -> Image:
    """An image of nothing but a Python environment."""
    if not is_root():
        stand_in_for_install(environment / "bin")
    return Image(root, f"{environment / 'bin'}:/usr/bin:/bin")


@pytest.fixture(scope="package")
def replay(tmp_path_factory: pytest.TempPathFactory, index: Index) -> Replay:
    """The Dockerfile, with the stage `wheel` done."""
    folder = tmp_path_factory.mktemp("wheel")
    contexts = {"checkpoint": ROOT / "demo" / "checkpoint"}
    # The hashes are those of wheels that are made below.
    locks = {f"requirements/{name}.txt": folder / f"{name}.txt" for name in ("image", "sbom", "serve")}
    made = Replay(ROOT, {"TORCH_INDEX_URL": ""}, {**index.settings, "OMP_NUM_THREADS": "1"}, contexts, locks)
    stand_in(folder / "python", only="pip")
    image = made.run("wheel", empty_image(folder / "root", folder / "python"))
    (wheel,) = image.at("/wheels").glob("openai_bls-*.whl")
    wheels.fill(index.folder, wheels.requirements(wheel, ("progress", "smoke", "tracing", "kv-events", "processors")))
    for name, path in locks.items():
        path.write_text(wheels.relocked((ROOT / name).read_text(encoding="utf-8"), index.folder), encoding="utf-8")
    return made


@pytest.fixture(scope="package")
def cpu(tmp_path_factory: pytest.TempPathFactory, replay: Replay) -> Image:
    """The stage `cpu`, on a Python that has every package already but the library.

    Its bill of materials is left out: the instruction is that of `runtime`, where there are fewer packages.
    """
    folder = tmp_path_factory.mktemp("cpu")
    stand_in(folder / "python", leave_out="openai_bls")
    return replay.run("cpu", empty_image(folder / "root", folder / "python"), leave_out="cyclonedx_py")


NVIDIA = {
    "llguidance": "0.7.29",
    # In no index, so that pip could only replace it, never get it again.
    "numpy": "1.26.4+nvidia",
    "tensorrt-llm": "1.2.1",
    "torch": "2.10.0a0+nvidia",
    "transformers": "4.57.3",
    "xgrammar": "0.1.32",
    # As Debian writes versions, which pip cannot.
    "python-apt": "2.7.7build1",
}
"""Packages of NVIDIA's image that must stay, and their versions."""


def nvidia_python(folder: Path) -> Path:
    """A Python with the names and versions of what matters in NVIDIA's image; its site-packages."""
    site_packages = stand_in(folder, only="pip")
    pins = [f"{name}=={NVIDIA[name]}" for name in ("llguidance", "transformers", "xgrammar")]
    for name, version in NVIDIA.items():
        wheels.pretend(site_packages, name, version, *(pins if name == "tensorrt-llm" else ()))
    return site_packages


VLLM = {
    "llguidance": "1.7.6",
    # Newer than Triton's client takes, so that one environment could not hold both.
    "protobuf": "7.36.2",
    "torch": "2.11.0+vllm",
    "transformers": "5.19.0",
    "vllm": "0.32.0",
}
"""Packages of vLLM's image that must stay, and their versions."""


def vllm_python(folder: Path) -> Path:
    """A Python with the names and versions of what matters in vLLM's image, and what an engine's process imports."""
    site_packages = stand_in(folder, only="pip")
    for name in ("msgspec", "numpy"):
        wheels.link_site_packages(folder / name, only=name)
        (site_packages / f"{name}.pth").write_text(f"{folder / name}\n")
    for name, version in VLLM.items():
        wheels.pretend(site_packages, name, version)
    return site_packages


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory, replay: Replay) -> Image:
    """The stage `engine`, on a Python that stands in for vLLM's."""
    folder = tmp_path_factory.mktemp("engine")
    vllm_python(folder / "python")
    return replay.run("engine", empty_image(folder / "root", folder / "python"))


@pytest.fixture(scope="package")
def runtime(tmp_path_factory: pytest.TempPathFactory, replay: Replay) -> Image:
    """The stage `runtime`, on a Python that stands in for NVIDIA's."""
    folder = tmp_path_factory.mktemp("runtime")
    nvidia_python(folder / "python")
    return replay.run("runtime", empty_image(folder / "root", folder / "python"))
