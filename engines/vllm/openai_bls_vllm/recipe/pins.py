"""Packages that an installer would put into an environment, before it downloads them, and the CUDA that they need."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from openai_bls.core.manifest import EngineSetupError

_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")
"""Package of the CUDA that torch was built with; its own version is CUDA's."""
_UV_LINE = re.compile(r"^ \+ (\S+)==(\S+)$", re.MULTILINE)


class Pin(msgspec.Struct, frozen=True, order=True):
    """A package in the version that would be installed."""

    name: str
    version: str
    requires_dist: tuple[str, ...] = ()
    """Its requirements, with markers; empty where the installer does not tell them."""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


class _Item(msgspec.Struct):
    metadata: Pin


class _Report(msgspec.Struct):
    install: list[_Item]


def resolve(installer: Sequence[str], words: Sequence[str], run: Callable[[Sequence[str]], str]) -> list[Pin]:
    """Packages of an installation that is not made, by name.

    Args:
        installer: command of pip or uv that installs into an environment.
        words: further words: requirements and options.
        run: runs a command; returns what it says.

    Raises:
        EngineSetupError: they cannot be had; one sentence.
    """
    command = [word for word in installer if word != "--quiet"]
    if "--python" in command and command[1:3] == ["pip", "install"]:
        said = run([*command, "--dry-run", *words])
        return sorted(Pin(name, version) for name, version in _UV_LINE.findall(said))
    with tempfile.TemporaryDirectory(prefix="openai_bls-pins-") as folder:
        report = Path(folder) / "report.json"
        run([*command, "--quiet", "--dry-run", "--ignore-installed", "--report", str(report), *words])
        try:
            found = msgspec.json.decode(report.read_bytes(), type=_Report)
        except (OSError, msgspec.DecodeError):
            raise EngineSetupError(f"{installer[0]} does not say what it would install: update its pip") from None
    return sorted(item.metadata for item in found.install)


def locked(path: Path) -> list[Pin]:
    """Packages of a file with versions and hashes."""
    return [Pin(*found) for found in re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)]


def needed_cuda(pins: Sequence[Pin]) -> tuple[int, int] | None:
    """CUDA, major and minor version, that the packages were built with; None where none of them says so."""
    for pin in pins:
        numbers = re.match(r"(\d+)\.(\d+)", pin.version)
        if numbers is not None and _RUNTIME.fullmatch(pin.name):
            return int(numbers[1]), int(numbers[2])
    return None


def require_driver(pins: Sequence[Pin], driver: tuple[int, int] | None) -> str:
    """What was found of the driver, once it is new enough for the packages: a release of CUDA runs with every driver of
    its major version.

    Args:
        pins: packages that would be installed.
        driver: newest CUDA that the driver runs; None where there is none.

    Raises:
        EngineSetupError: it is older, or there is none, or torch is a build for CPUs; one sentence with advice.
    """
    if driver is None:
        raise EngineSetupError("there is no CUDA driver (libcuda.so.1): install NVIDIA's, or take the build with --cpu")
    for_cpus = next((pin for pin in pins if pin.name == "torch" and pin.version.endswith("+cpu")), None)
    if for_cpus is not None:
        raise EngineSetupError(f"pip's index has {for_cpus}, no build for GPUs: give another (PIP_INDEX_URL), or --cpu")
    needed = needed_cuda(pins)
    found = "the driver runs CUDA {}.{}".format(*driver)
    if needed is None:
        return found
    wanted = "{}.{}".format(*needed)
    if driver[0] < needed[0]:
        raise EngineSetupError(
            f"{found}, and this vLLM was built with CUDA {wanted}: update the driver to one of CUDA {needed[0]}, or "
            "give an older --version"
        )
    return f"{found}, vLLM was built with CUDA {wanted}"
