"""A disk that is full, for the process that runs a test."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """Until the block ends no file of this process grows beyond `file_bytes`, whoever its user is.

    Python ignores the signal SIGXFSZ, so that a write that comes to the limit fails with an OSError.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
