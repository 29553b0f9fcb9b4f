"""What a measurement was made on: machine class and versions, without names of machines."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import msgspec

_PACKAGES = ("openai_bls", "uvicorn", "uvloop", "starlette", "msgspec", "tokenizers", "transformers", "numpy")


@dataclass(frozen=True)
class Conditions:
    """The conditions of a series of measurements."""

    command: str
    date: str
    """UTC, ISO 8601, to the minute."""
    cores: int
    cpu_model: str
    load_before: float
    """One-minute load average at the start: what else the machine was doing."""
    versions: dict[str, str]


def conditions(command: str, further_versions: dict[str, str] | None = None) -> Conditions:
    """The conditions now."""
    versions = {"Python": platform.python_version(), **(further_versions or {})}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Conditions(
        command=command,
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        cores=len(os.sched_getaffinity(0)),
        cpu_model=cpu_model(),
        load_before=round(os.getloadavg()[0], 1),
        versions=versions,
    )


def triton_version(http_url: str) -> str:
    """Of the tritonserver whose HTTP endpoint is `http_url`, such as 2.51.0."""
    with urllib.request.urlopen(f"{http_url}/v2", timeout=10) as answer:
        return str(msgspec.json.decode(answer.read())["version"])


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's name as Linux gives it."""
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.machine()
