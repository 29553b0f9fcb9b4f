"""Identity of a process of this machine, and a word that only processes of its user can derive from it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_SECRET_DIGITS = 16


def process_identity(pid: int) -> tuple[int, int, str]:
    """Id namespace, id, and start (in clock ticks) of a process, which together no other process of this machine has.

    Process ids repeat over time, and between containers that share a network namespace or /dev/shm. The start is "0"
    for a process that is not there.
    """
    try:
        # Field 22; the second field, in parentheses, may hold spaces.
        started = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  # Path.stat resolves the link's text
    return namespace, pid, started


def process_secret(pid: int) -> str:
    """Hexadecimal digits that processes of the same user derive from a process, and no other user can guess.

    The kernel shows a process's auxiliary vector to its own user alone. Its addresses (of the program, the loader, the
    vDSO and AT_RANDOM) are random, some 80 bits in all. Where it cannot be read, the digits are the same for every
    process: a name with them can be guessed, so that another user may take it first. Nothing else may depend on them.
    """
    try:
        vector = Path(f"/proc/{pid}/auxv").read_bytes()
    except OSError:
        vector = b""
    return hashlib.sha256(b"openai_bls" + vector).hexdigest()[:_SECRET_DIGITS]
