"""Memory, inherited sockets and the end of a model's own stub process; for model.py alone."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import socket
import stat
import sys
from pathlib import Path

from openai_bls.core.machine.memory import settle
from openai_bls.triton_models.server.process import sockets

__all__ = ["begin", "close_inherited_sockets", "keep_regions_private", "keep_torch_out", "release", "settle"]

_STANDARD_STREAMS = 3
_SHARED_MEMORY = " /dev/shm/"
_TCP_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def begin() -> None:
    """Prepare for loading: at the beginning of `initialize`, which `settle` ends.

    Garbage collections during imports find next to nothing and take a tenth of the time.
    """
    close_inherited_sockets()
    keep_regions_private()
    gc.disable()
    # The first to be registered is the last to be called.
    atexit.register(_end)


def _end() -> None:
    """End this process without taking apart what is loaded, which frees object by object what the system frees at once.

    The stub itself has ended by then, and tritonserver waits for this process alone.
    """
    if "mpi4py" in sys.modules:
        # MPI has an end of its own, after this; a rank that leaves without it has failed.
        gc.unfreeze()
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def close_inherited_sockets() -> int:
    """Close tritonserver's TCP sockets in this process.

    tritonserver does not mark its sockets close-on-exec, so a stub that is started while the server runs, by a load,
    inherits its listeners and the connections of all clients. What the server closes then stays open for the client
    until this process ends. Sockets that the model opens itself are not touched.

    Returns:
        How many were closed.
    """
    # In this order: while this process holds a socket, no other gets its inode.
    mine = sockets("self")
    theirs = set(sockets(os.getppid()).values())
    opened = {fd: (inode, socket.socket(fileno=fd)) for fd, inode in mine.items() if fd >= _STANDARD_STREAMS}
    tcp = [(inode, found) for inode, found in opened.values() if found.family in _TCP_FAMILIES]
    # A connection that the server has closed since is known by its port.
    ports = {found.getsockname()[1] for inode, found in tcp if inode in theirs}
    inherited = [found for inode, found in tcp if inode in theirs or found.getsockname()[1] in ports]
    for _, found in opened.values():
        if found in inherited:
            found.close()
        else:
            # Only the Python object ends.
            found.detach()
    return len(inherited)


def keep_regions_private() -> None:
    """Let no other user read the shared memory of this process, in which Triton passes requests: it makes the regions
    readable by everybody, whatever the umask."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        for path in {line[line.find("/") :] for line in lines if _SHARED_MEMORY in line}:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    status = os.fstat(descriptor)
                    if status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode):
                        os.fchmod(descriptor, 0o600)
                finally:
                    os.close(descriptor)


def keep_torch_out() -> None:
    """Let transformers load tokenizers without torch: before transformers is imported.

    transformers imports torch wherever it finds it, also for a tokenizer, which never uses it: 180 MB and a second.
    Nothing in this process can import torch any more.
    """
    # Python's own way to say that a module cannot be had: `import torch` fails, `find_spec("torch")` is None.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    # Without torch it advises to install it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Texts come one at a time, for which a pool of threads, one for each core, does nothing.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def release() -> None:
    """Free what only reference cycles still hold: at the end of a model.

    A response sender of Triton's among it, freed while the interpreter ends, crashes the process.
    """
    gc.collect()
