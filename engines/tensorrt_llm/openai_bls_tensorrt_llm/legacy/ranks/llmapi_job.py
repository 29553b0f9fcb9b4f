"""Life of an mpirun job of `trtllm-llmapi-launch`, of which `serve` is one process on this machine.

mpirun ends all ranks within a second of a SIGTERM, and `trtllm-llmapi-launch` goes on without its command (read in its
source). So a stop goes to `serve` itself, which finishes its requests, and the job ends once `serve` has.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.core.processes.process_tree import descendants, guarded
from openai_bls.launcher.console import Console
from openai_bls.launcher.stop_requests import stop_requests
from openai_bls.launcher.tritonserver.process import FOLLOW_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOOK_SECONDS = 0.25
# mpirun gives its ranks up to a second.
_GRACE_SECONDS = 10.0


def run(job: Sequence[str], served: Sequence[str], follow_s: float = FOLLOW_SECONDS) -> int:
    """Run a job to its end; a first stop signal ends what it serves, a second one the job.

    Args:
        job: the mpirun command.
        served: command that `trtllm-llmapi-launch` runs on rank 0, word for word.
        follow_s: seconds that the job has to end by itself once `served` has ended.

    Returns:
        0 after a stop, else the exit code of mpirun, or 1 if that goes on without `served`.
    """
    lifeline, theirs = socket.socketpair()
    with lifeline, stop_requests() as stops:
        with theirs:
            guardian = subprocess.Popen(
                guarded(job, theirs.fileno(), _GRACE_SECONDS),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        # mpirun's process id, or nothing if it could not be run.
        lifeline.recv(32)
        return _follow(guardian, served, stops, follow_s)


def _follow(guardian: subprocess.Popen[bytes], served: Sequence[str], stops: Callable[[], int], follow_s: float) -> int:
    pid: int | None = None
    handled, ended = 0, False
    deadline: float | None = None
    while (code := guardian.poll()) is None:
        found = _process(guardian.pid, served)
        ended = ended or (pid is not None and found is None)
        if found is not None and pid is None:
            Console().line(f"rank 0 runs as process {found}; a stop is for it")
        pid = found
        if ended and deadline is None:
            deadline = time.monotonic() + follow_s
        while handled < stops():
            handled += 1
            if handled > 1 or pid is None:
                guardian.terminate()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        if deadline is not None and time.monotonic() >= deadline:
            guardian.terminate()
            deadline = None
            guardian.wait()
        time.sleep(_LOOK_SECONDS)
    if stops():
        return 0
    return 1 if ended else code


def _process(root: int, command: Sequence[str]) -> int | None:
    """Process id of the process below `root` that runs `command`."""
    wanted = b"".join(os.fsencode(word) + b"\0" for word in command)
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == wanted:
                return pid
    return None
