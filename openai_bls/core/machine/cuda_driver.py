"""CUDA of the installed driver, as its library tells it: no device is touched, and compatibility packages count."""

from __future__ import annotations

import ctypes

_LIBRARY = "libcuda.so.1"


def driver_cuda() -> tuple[int, int] | None:
    """Newest CUDA, major and minor version, that the driver runs; None where there is no driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        version = ctypes.c_int()
        # The one call that needs no cuInit.
        failed = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed or version.value < 1000 else (version.value // 1000, version.value % 1000 // 10)
