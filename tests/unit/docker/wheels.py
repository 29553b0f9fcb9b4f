"""Wheels for pip without a network: of what is installed here, and distributions that are nothing but a name."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

# Written by the installer, not part of a wheel.
_INSTALLERS = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def fill(folder: Path, wanted: Iterable[str]) -> None:
    """Put wheels of what `wanted` and its dependencies have installed here into `folder`."""
    waiting = [Requirement(text) for text in wanted]
    seen: set[str] = set()
    packed: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) not in seen:
            seen.add(str(requirement))
            distribution = metadata.distribution(requirement.name)
            waiting += _needed(distribution, requirement.extras)
            if distribution.name not in packed:
                packed.add(distribution.name)
                _repack(distribution, folder)


def _needed(distribution: metadata.Distribution, extras: set[str]) -> list[Requirement]:
    """What a distribution requires here, with those extras of it."""
    return _asked([Requirement(text) for text in distribution.requires or []], extras)


def _asked(found: Iterable[Requirement], extras: Iterable[str]) -> list[Requirement]:
    return [
        requirement
        for requirement in found
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras})
    ]


def requirements(wheel: Path, extras: Iterable[str]) -> list[str]:
    """What a wheel requires here, with those extras of it."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    found = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)]
    return [str(item) for item in _asked(found, extras)]


def relocked(lock: str, folder: Path) -> str:
    """A lock file of the same packages, with the versions that are installed here and the hashes of `folder`."""
    hashes = {path.name.lower(): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.whl")}
    lines = []
    for name in dict.fromkeys(re.findall(r"^([a-z0-9][\w.-]*)==", lock, re.MULTILINE)):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            # For another Python.
            continue
        prefix = re.sub(r"[-_.]+", "_", name)
        found = [value for file, value in hashes.items() if re.sub(r"[-_.]+", "_", file.partition("-")[0]) == prefix]
        lines.append(f"{name}=={version} --hash=sha256:{(found or ['0' * 64])[0]}\n")
    return "".join(lines)


def _repack(distribution: metadata.Distribution, folder: Path) -> None:
    files = {str(path): Path(str(path.locate())) for path in distribution.files or []}
    info = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA"))
    kept = {
        name: path
        for name, path in files.items()
        if ".." not in Path(name).parts and path.suffix != ".pyc" and Path(name).name not in _INSTALLERS
    }
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    tag = "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))
    with zipfile.ZipFile(folder / f"{info.removesuffix('.dist-info')}-{tag}.whl", "w") as wheel:
        for name, path in kept.items():
            wheel.write(path, name)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*kept, f"{info}/RECORD"]))


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


def link_site_packages(target: Path, *, leave_out: str = "", only: str = "") -> None:
    """A folder with links to what is installed here, for another environment's path.

    Args:
        target: the folder to make.
        leave_out: prefix of the names that are left out, if any.
        only: prefix of the names that are linked, if not all.
    """
    target.mkdir(parents=True)
    for entry in Path(str(metadata.distribution("pip").locate_file(""))).iterdir():
        if entry.name.startswith(only) and not (leave_out and entry.name.lstrip("_").startswith(leave_out)):
            (target / entry.name).symlink_to(entry)
