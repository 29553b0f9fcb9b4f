"""Memory: what is free, and what loading leaves behind, given back to the system."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from pathlib import Path

# Objects more than have been freed, after which the young ones are collected. By Python's default of 700 a request is
# in the midst of its work when they are.
_YOUNG_OBJECTS = 10_000
# Of malloc.h of the GNU C library.
_M_MMAP_THRESHOLD = -3


def available_bytes() -> int:
    """Memory of this machine that nothing uses, in bytes; all of it where the system does not tell."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
