"""Worker process, under a guardian so that it never outlives the builder, with its log in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from openai_bls.core.processes.process_tree import guarded, names_a_rank

_POLL_SECONDS = 0.2
# From the order to stop to the kill: TensorRT does not listen, but ranks may.
_GRACE_SECONDS = 5.0

KILLED_BASE = 128
"""Exit codes from here on are this and the number of a signal."""


class LogTail:
    """Follows a log file. A progress bar's line ends with a carriage return."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def lines(self, *, rest: bool = False) -> list[str]:
        """The complete lines since the last call; with `rest`, what stands behind the last of them too."""
        *lines, self._rest = (self._rest + self._file.read()).replace(b"\r", b"\n").split(b"\n")
        if rest:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def run_worker(arguments: Sequence[str], log: Path, on_line: Callable[[str], None], tick: Callable[[], None]) -> int:
    """Run `python -m openai_bls_tensorrt_llm.recipe.worker.main` to its end, or to ours.

    Args:
        arguments: command-line arguments of the worker.
        log: file to which the worker's output is appended.
        on_line: called with each line of the output.
        tick: called a few times a second meanwhile.

    Returns:
        Its exit code, or `KILLED_BASE` and the number of the signal that ended it.
    """
    lifeline, theirs = socket.socketpair()
    worker = [sys.executable, "-m", "openai_bls_tensorrt_llm.recipe.worker.main", *arguments]
    # A snapshot: an MPI that was imported here leaves variables in the environment that Python does not see.
    environment = {name: os.environ[name] for name in os.environ if not (names_a_rank(name) or name[:6] == "SLURM_")}
    environment["PYTHONUNBUFFERED"] = "1"
    tail = LogTail(log)
    with lifeline, contextlib.closing(tail):
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                guarded(worker, theirs.fileno(), _GRACE_SECONDS),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                # Ctrl-C at the terminal is for the builder, which ends the worker.
                start_new_session=True,
            )
        try:
            while True:
                code = _wait(process)
                for line in tail.lines(rest=code is not None):
                    on_line(line)
                if code is not None:
                    return KILLED_BASE - code if code < 0 else code
                tick()
        finally:
            # Reached with a live worker only by an exception, such as a Ctrl-C.
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None
