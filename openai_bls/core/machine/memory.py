"""Memory: what is free, and what loading leaves behind, given back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path

# Objects more than have been freed, after which the young ones are collected. By Python's default of 700 a request is
# in the midst of its work when they are.
_YOUNG_OBJECTS = 10_000
# Of malloc.h of the GNU C library.
_M_MMAP_THRESHOLD = -3


def trim() -> None:
    """Give freed memory back: some milliseconds, so after large work only."""
    # Only the GNU C library has it.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def settle() -> None:
    """Give back what loading has left behind: once everything is loaded, before the first request.

    malloc keeps freed memory; after a tokenizer of 150,000 tokens that is 5 to 30 MB. Later collections pass over what
    is loaded: they would look at 380,000 objects beside an engine, for 0.2 s and more in which nobody gets a token.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()
    trim()


def return_large_blocks() -> None:
    """Have malloc return blocks of 1 MiB and more to the system when they are freed.

    By default it learns from the first such block that is freed to keep the next ones, up to 32 MiB, and of a thread's
    own heap `trim` does not return the end. For a process whose large blocks are requests and images; not for an
    engine, which would have each of its tensors from the system.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that processes may still take without swapping: of the machine, or less of this container.

    Args:
        proc: mount point of procfs.
        cgroup: root of the control groups, version 2, as a container sees it.
    """
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), free)
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        # Pages of files are given back under pressure.
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        files = int(stat["inactive_file"]) + int(stat["active_file"])
        free = min(free, max(0, limit - used + files))
    return free
