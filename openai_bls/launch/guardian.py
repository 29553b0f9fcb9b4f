"""The process between the launcher and tritonserver: it makes sure that nothing outlives either of
them.

Run as a script by `openai_bls.launch.process`, never imported by it, with the standard library only
(it starts in a few hundredths of a second)::

    python -I -S guardian.py <lifeline fd> <grace seconds> <shm prefix> <command> ...

- It adopts orphans (PR_SET_CHILD_SUBREAPER), so the stubs of a crashed tritonserver become its
  children, and it exits only when it has none left.
- Its end of the lifeline, a socket, sees end-of-file when the launcher dies in whatever way,
  SIGKILL included: then it stops the server. A parent-death signal would not do here: that one
  fires when the *thread* that started the child ends, and test suites start servers from threads.
- If it is itself killed, the parent-death signal it gave tritonserver takes the server down, and
  stubs mostly leave by themselves when their server is gone.
- SIGTERM drains: tritonserver gets a SIGTERM. A second SIGTERM, SIGQUIT, or the grace period's end
  kills.
- At the end the server's shared-memory regions are removed; a killed server cannot do that.

The exit code is the server's, or 128 + the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Whoever kills the launcher outright wants the server gone too, not a drain of full length.
_ORPHAN_GRACE_SECONDS = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _children() -> list[int]:
    """The direct children of this process, zombies included."""
    me, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold spaces and parentheses; the parent follows the
                # state after it.
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == me:
                    found.append(int(entry.name))
    return found


def _kill_everything() -> None:
    """Kill and reap until no child is left; grandchildren become children as their parents die."""
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _remove_regions(prefix: str) -> None:
    if prefix:
        for region in Path("/dev/shm").glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                region.unlink()


def _watch(server: int, lifeline: socket.socket, grace: float) -> int:
    """Wait for the server's end, stopping it when told to, and return its exit code."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    watched = [reader, lifeline.fileno()]
    lifeline.sendall(f"{server}\n".encode())
    deadline: float | None = None
    while True:
        # Everything that ended is reaped; orphaned stubs are adopted and must not stay zombies.
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == server:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
            if pid == 0:
                break
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout)
        received = os.read(reader, 4096) if reader in ready else b""
        orders = [number for number in received if number != signal.SIGCHLD]
        expired = deadline is not None and time.monotonic() >= deadline
        if expired or signal.SIGQUIT in orders or (orders and deadline is not None):
            os.kill(server, signal.SIGKILL)
            deadline = time.monotonic() + 1.0
        elif orders:
            os.kill(server, signal.SIGTERM)
            deadline = time.monotonic() + grace
        if lifeline.fileno() in ready and lifeline.recv(16) == b"":
            watched.remove(lifeline.fileno())
            os.kill(server, signal.SIGTERM)
            soon = time.monotonic() + min(grace, _ORPHAN_GRACE_SECONDS)
            deadline = soon if deadline is None else min(deadline, soon)


def main() -> int:
    """Run the command of the arguments and outlive it."""
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    lifeline.set_inheritable(False)
    grace, prefix, command = float(sys.argv[2]), sys.argv[3], sys.argv[4:]
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me = os.getpid()
    # A session of its own: a Ctrl-C at the terminal reaches the launcher only, which then asks for
    # a drain. preexec_fn is unsafe beside threads, of which there are none here.
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: _die_with_parent(me),  # noqa: PLW1509
    )
    try:
        return _watch(server.pid, lifeline, grace)
    finally:
        _kill_everything()
        _remove_regions(prefix)


if __name__ == "__main__":
    sys.exit(main())
