"""Distributions that are nothing but a name: wheels for pip without a network, and installed ones."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path


def empty(folder: Path, name: str, version: str, *requires: str) -> Path:
    """A wheel in `folder` without code."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    path = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", _metadata(name, version, requires))
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "".join(f"{info}/{file},,\n" for file in ("METADATA", "WHEEL", "RECORD")))
    return path


def _metadata(name: str, version: str, requires: Iterable[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), ""])


def pretend(site_packages: Path, name: str, version: str, *requires: str) -> None:
    """Install a distribution that has a name, a version and dependencies, and no code."""
    info = site_packages / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(_metadata(name, version, requires))
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{file},,\n" for file in ("METADATA", "INSTALLER", "RECORD")))
