"""Memory that loading leaves behind: garbage collections, and what malloc keeps, given back to the system."""

from __future__ import annotations

import ctypes
import gc

# Objects more than have been freed, after which the young ones are collected. By Python's default of 700 a request is
# in the midst of its work when they are.
_YOUNG_OBJECTS = 10_000


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
