"""GPUs that a process sees, by nvidia-smi: CUDA itself would take some hundred megabytes of the first."""

from __future__ import annotations

import os
import subprocess

import msgspec

from openai_bls.core.manifest import NotNegative

_MIB = 1 << 20
_TIMEOUT_S = 60.0


class InstalledGpu(msgspec.Struct, frozen=True):
    """One GPU of this machine."""

    name: str
    """E.g. `NVIDIA H100 80GB HBM3`."""
    compute_capability: str
    """E.g. `9.0`."""
    memory_bytes: NotNegative


def visible_gpus() -> list[InstalledGpu]:
    """GPUs in the order of CUDA_VISIBLE_DEVICES, or of the bus; none where nvidia-smi is missing or fails."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse(done.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse(text: str, visible: str | None) -> list[InstalledGpu]:
    """GPUs of nvidia-smi's table.

    Args:
        text: lines `index, uuid, name, memory.total in MiB, compute_cap`; others are left out.
        visible: CUDA_VISIBLE_DEVICES: indices or beginnings of UUIDs. As for CUDA, the first that is unknown ends it.
    """
    found: list[tuple[str, str, InstalledGpu]] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) < 5 or not parts[-2].isdecimal():
            continue
        name = ", ".join(parts[2:-2])
        found.append((parts[0], parts[1], InstalledGpu(name, parts[-1], int(parts[-2]) * _MIB)))
    if visible is None:
        return [gpu for _, _, gpu in found]
    chosen: list[InstalledGpu] = []
    for wanted in (part.strip() for part in visible.split(",")):
        matching = [gpu for index, uuid, gpu in found if wanted and (wanted == index or uuid.startswith(wanted))]
        if len(matching) != 1:
            break
        chosen += matching
    return chosen
