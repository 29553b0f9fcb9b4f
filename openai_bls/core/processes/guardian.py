"""Guardian process between a program and a server that it starts: nothing outlives either of them.

The server is a tritonserver of the launcher's or an engine's process. This is run as a script
(`openai_bls.core.processes.process_tree`), never imported, with the standard library only (it starts in a few
hundredths of a second)::

    python -I -S guardian.py <lifeline fd> <grace> <shm prefix> <folder> <ranks> <follow> <session> <command> ...

`<grace>` is the seconds from an order to end to a kill, `<ranks>` the number of ranks that an mpirun
as the command starts, 0 for any other command; `<follow>` is the seconds the other ranks have to
leave once one has left. Without ranks it is the time that the command's own children have to leave
once the command has ended, after a SIGTERM. `<session>` is 1 for a session of the command's own, 0 for
a process group alone: Linux may schedule each session as a group (sched_autogroup), and on a busy
machine an engine that is in another group than its reader has half the throughput.

- It adopts orphans (PR_SET_CHILD_SUBREAPER), so the stubs of a crashed tritonserver become its
  children, and it exits only when it has none left.
- Its end of the lifeline, a socket, sees end-of-file when the program dies in whatever way,
  SIGKILL included: then it stops the server. A parent-death signal would not do here: that one
  fires when the *thread* that started the child ends, and test suites start servers from threads.
- If it is itself killed, the parent-death signal it gave tritonserver takes the server down, and
  stubs mostly leave by themselves when their server is gone.
- SIGTERM drains: tritonserver gets a SIGTERM. A second SIGTERM, SIGQUIT, or the grace period's end
  kills.
- At the end the server's shared-memory regions are removed, and the `<folder>` of an engine's process with the regions
  that are noted in it (`folder.py`); what was killed cannot do that.

An mpirun does not drain: told to end by SIGTERM it kills its ranks within a second (measured with Open MPI 4.1.8 and
5.0.11). So the orders go to the ranks on this machine, past it:

- A drain is a SIGTERM to rank 0, which the requests are running on. Once it has gone, the others get theirs, and what
  then still goes on, on other machines above all, mpirun ends.
- A kill is a SIGKILL to the ranks: mpirun sees that, ends those on other machines and clears up behind itself. If it
  does not, it is killed as well.
- When a rank leaves without having been told to, the others follow, whatever its exit code; mpirun goes on after a 0.
- If the guardian is itself killed, mpirun gets a SIGTERM instead of SIGKILL, so that it takes its ranks along.

The exit code is the server's (that of mpirun is the first non-zero one of a rank), or 128 + the number of the signal
that ended it.
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

# From one kill to the next, stronger one.
_KILL_SECONDS = 1.0
# An engine's guardian gives what the engine has started a second to leave.
_KILL_GUARDIANS_SECONDS = 5.0
# mpirun gives its other ranks up to a second, and then reports.
_MPIRUN_KILL_SECONDS = 5.0

_LOOK_SECONDS = 0.25
_LEAVE_POLL_SECONDS = 0.02
# mpirun starts all ranks of a machine at once. One that has not been seen this long after the first has gone already.
_APPEAR_SECONDS = 2.0
_RANK_VARIABLE = b"OMPI_COMM_WORLD_RANK"
_LOCAL_SIZE_VARIABLE = b"OMPI_COMM_WORLD_LOCAL_SIZE"

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent(parent: int, number: signal.Signals) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on; raises OSError when the process has gone."""
    # The name in parentheses may hold spaces and parentheses.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _children(parent: int) -> list[int]:
    """The direct children of a process, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if int(_stat(int(entry.name))[1]) == parent:
                    found.append(int(entry.name))
    return found


def _let_leave(seconds: float) -> None:
    """Tell the children to end, and reap those that do within `seconds`."""
    deadline = time.monotonic() + seconds
    told: set[int] = set()
    while children := _children(os.getpid()):
        for pid in set(children) - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        told.update(children)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() >= deadline:
            return
        time.sleep(_LEAVE_POLL_SECONDS)


def _kill_everything() -> None:
    """Kill and reap until no child is left; grandchildren become children as their parents die.

    Guardians among them, of engines' processes, are told to kill theirs: they have to clear up behind them.
    """
    deadline = time.monotonic() + _KILL_GUARDIANS_SECONDS
    told: set[int] = set()
    while children := _children(os.getpid()):
        for pid in children:
            with contextlib.suppress(OSError):
                if pid not in told and _is_guardian(pid):
                    os.kill(pid, signal.SIGQUIT)
                    told.add(pid)
                elif pid not in told or time.monotonic() >= deadline:
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_LEAVE_POLL_SECONDS)


def _is_guardian(pid: int) -> bool:
    return sys.argv[0].encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _remove_regions(prefix: str) -> None:
    if prefix:
        for region in Path("/dev/shm").glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                region.unlink()


def _remove_folder(folder: str) -> None:
    if folder:
        import shutil

        with contextlib.suppress(OSError):
            for note in Path(folder, "shared_memory").iterdir():
                Path("/dev/shm", note.name).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


class _Server:
    """A tritonserver, which is a child of this process."""

    kill_seconds = _KILL_SECONDS
    look_seconds: float | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def look(self) -> float | None:
        """Look after nothing: a single server has no ranks."""
        return None

    def drain(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def expire(self) -> None:
        """The time for what was asked last is over."""
        self.kill()

    def exit_code(self, status: int) -> int:
        """Exit code of the process, a signal counted from 128."""
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code


class _Job(_Server):
    """An mpirun, which is a child of this process, and its ranks on this machine, which are its own."""

    kill_seconds = _MPIRUN_KILL_SECONDS
    look_seconds = _LOOK_SECONDS

    def __init__(self, pid: int, ranks: int, follow: float) -> None:
        super().__init__(pid)
        self._follow = follow
        self._ranks = ranks
        # Of the ranks, those on this machine; known from the first one seen.
        self._here = ranks
        self._alive: dict[int, tuple[int, str]] = {}
        self._seen: set[int] = set()
        self._first_seen: float | None = None
        self._stopping = False
        self._lost = False
        self._killed = False
        self._cut_off = False

    def look(self) -> float | None:
        """Notice ranks that came and went; the seconds until the rest must have followed, once one has gone."""
        gone = self._find()
        for rank, process in list(self._alive.items()):
            if not self._is(*process):
                gone.append(rank)
                del self._alive[rank]
        if not gone or self._killed:
            return None
        if 0 not in gone and not self._stopping:
            # Without it the engine is lost. Said in the words that logs.py looks for.
            _say(f"rank {min(gone)} has left the others")
            self._lost = self._stopping = True
            self._signal(signal.SIGTERM)
            return self._follow
        if 0 in gone:
            self._stopping = True
            self._signal(signal.SIGTERM)
            return self._follow
        return None

    def drain(self) -> None:
        self._find()
        self._stopping = True
        if 0 in self._alive:
            self._signal(signal.SIGTERM, 0)
        elif 0 not in self._seen:
            _say("rank 0 does not run on this machine: running requests are cut off")
            super().drain()

    def kill(self) -> None:
        self._find()
        if self._killed:
            super().kill()
        elif not any(self._is(*process) for process in self._alive.values()):
            # mpirun ends those on other machines itself.
            super().drain()
        self._killed = True
        self._signal(signal.SIGKILL)

    def expire(self) -> None:
        if 0 in self._alive or 0 not in self._seen or self._lost or self._killed or self._cut_off:
            self.kill()
            return
        # Rank 0 has ended well, or mpirun would have ended the others.
        _say("ranks that went on without rank 0 are ended")
        self._cut_off = True
        super().drain()

    def exit_code(self, status: int) -> int:
        if self._cut_off and not self._killed:
            return 0
        return super().exit_code(status) or int(self._lost)

    def _find(self) -> list[int]:
        """Look for ranks that are not known yet; those that must have come and gone meanwhile."""
        if len(self._seen) >= self._here:
            return []
        for pid in _children(self.pid):
            with contextlib.suppress(OSError, IndexError, KeyError):
                lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                variables = dict(line.partition(b"=")[::2] for line in lines)
                rank = int(variables[_RANK_VARIABLE])
                if rank not in self._seen:
                    self._alive[rank] = (pid, _stat(pid)[19])
                    self._seen.add(rank)
                    self._here = int(variables[_LOCAL_SIZE_VARIABLE])
                    self._first_seen = self._first_seen or time.monotonic()
        if self._first_seen is None or time.monotonic() < self._first_seen + _APPEAR_SECONDS:
            return []
        missed = [rank for rank in range(self._ranks) if rank not in self._seen] if self._here == self._ranks else []
        self._seen.update(missed)
        self._here = len(self._seen)
        return missed

    def _is(self, pid: int, started: str) -> bool:
        """True while that process runs; a process id alone may be another's by now."""
        try:
            fields = _stat(pid)
        except OSError:
            return False
        return fields[0] != "Z" and fields[19] == started

    def _signal(self, number: signal.Signals, *ranks: int) -> None:
        for rank, (pid, started) in self._alive.items():
            if (not ranks or rank in ranks) and self._is(pid, started):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _say(text: str) -> None:
    """Into the server's log."""
    sys.stderr.write(f"openai_bls: {text}\n")
    sys.stderr.flush()


def _earlier(first: float | None, second: float | None) -> float | None:
    return min((moment for moment in (first, second) if moment is not None), default=None)


def _watch(server: _Server, lifeline: socket.socket, grace: float) -> int:
    """Wait for the server's end, stopping it when told to, and return its exit code."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    watched = [reader, lifeline.fileno()]
    lifeline.sendall(f"{server.pid}\n".encode())
    ordered = False
    deadline: float | None = None
    while True:
        # Everything that ended is reaped; orphaned stubs are adopted and must not stay zombies.
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == server.pid:
                return server.exit_code(status)
            if pid == 0:
                break
        follow = server.look()
        if follow is not None:
            deadline = _earlier(deadline, time.monotonic() + follow)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(watched, [], [], _earlier(left, server.look_seconds))
        received = os.read(reader, 4096) if reader in ready else b""
        orders = [number for number in received if number != signal.SIGCHLD]
        expired = deadline is not None and time.monotonic() >= deadline
        if expired or signal.SIGQUIT in orders or (orders and ordered):
            if expired and not orders:
                server.expire()
            else:
                server.kill()
                ordered = True
            deadline = time.monotonic() + server.kill_seconds
        elif orders:
            server.drain()
            ordered = True
            deadline = _earlier(deadline, time.monotonic() + grace)
        if lifeline.fileno() in ready and lifeline.recv(16) == b"":
            watched.remove(lifeline.fileno())
            server.drain()
            ordered = True
            deadline = _earlier(deadline, time.monotonic() + min(grace, _ORPHAN_GRACE_SECONDS))


def main() -> int:
    """Run the command of the arguments and outlive it."""
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    lifeline.set_inheritable(False)
    grace, prefix, folder = float(sys.argv[2]), sys.argv[3], sys.argv[4]
    ranks, follow = int(sys.argv[5]), float(sys.argv[6])
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me = os.getpid()
    at_my_death = signal.SIGTERM if ranks else signal.SIGKILL
    own_session = sys.argv[7] == "1"

    def prepare() -> None:
        if not own_session:
            os.setpgid(0, 0)
        _die_with_parent(me, at_my_death)

    try:
        # Not in this process group: a Ctrl-C at the terminal reaches the launcher only, which then asks
        # for a drain. preexec_fn is unsafe beside threads, of which there are none here.
        server = subprocess.Popen(
            sys.argv[8:],
            stdin=subprocess.DEVNULL,
            start_new_session=own_session,
            preexec_fn=prepare,  # noqa: PLW1509
        )
        return _watch(_Job(server.pid, ranks, follow) if ranks else _Server(server.pid), lifeline, grace)
    finally:
        if not ranks and follow:
            _let_leave(follow)
        _kill_everything()
        _remove_regions(prefix)
        _remove_folder(folder)


if __name__ == "__main__":
    sys.exit(main())
