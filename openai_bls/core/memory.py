"""Memory that malloc keeps after it was freed, given back to the system."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give freed memory back: some milliseconds, so after large work only."""
    # Only the GNU C library has it.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
