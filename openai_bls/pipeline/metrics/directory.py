"""Directory in which the `openai_bls` instances of one tritonserver keep their metrics.

prometheus_client's multiprocess mode: each instance writes its values to memory-mapped files of its own, and whichever
instance is scraped reads all of them. The library chooses that mode when it is imported, hence before any import of it
`share` must be called; this module does not import it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from pathlib import Path

from openai_bls.core.processes import private_folder
from openai_bls.core.processes.private_folder import remove_stale, server_name

logger = logging.getLogger(__name__)

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# In memory: a write to a file on a disk can wait for the disk.
_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "openai_bls-metrics-"


def share(owner: int) -> Path | None:
    """Make the directory and have prometheus_client use it in this process; remove those of servers that have ended.

    Args:
        owner: process id of the tritonserver.

    Returns:
        The directory; None, after a warning, if it cannot be made or is not this user's alone. `/metrics` then shows
        only the instance that answers.
    """
    # The environment of the server may hold another program's.
    for name in (VARIABLE, VARIABLE.lower()):
        os.environ.pop(name, None)
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    directory = parent / server_name(_PREFIX, owner)
    remove_stale(parent, _PREFIX)
    try:
        private_folder.make(directory)
    except OSError as error:
        logger.warning("/metrics will not show the other instances: %s", error)
        return None
    os.environ[VARIABLE] = str(directory)
    return directory


def ended_instances(directory: str) -> set[int]:
    """Process ids of instances that have ended and still have gauges of live processes."""
    pids = {int(file.stem.rpartition("_")[2]) for file in Path(directory).glob("gauge_live*_*.db")}
    return {pid for pid in pids if _has_ended(pid)}


def _has_ended(pid: int) -> bool:
    """True of a zombie, too: tritonserver reaps a dead stub when its model is unloaded, which may be never."""
    try:
        # The name in parentheses may hold spaces and parentheses.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state in "ZX"


class Leadership:
    """Choice of one of the instances that share the directory: until its process ends, then of another."""

    def __init__(self) -> None:
        self._lock: int | None = None

    def have(self) -> bool:
        """True if it is this instance, or if none share."""
        directory = os.environ.get(VARIABLE)
        if directory is None or self._lock is not None:
            return True
        lock = os.open(Path(directory) / "leader.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def give_up(self) -> None:
        """Let another instance have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
