"""CPU time of a server's process tree, read from /proc (Linux)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"
_SERVER = "tritonserver"
_STUB_SCRIPT = "model.py"


@dataclass(frozen=True)
class Stat:
    """The few fields of /proc/<pid>/stat that matter here."""

    name: str
    parent: int
    ticks: int
    """User and system time in clock ticks, of all threads, those that have ended included."""


def parse_stat(text: str) -> Stat:
    """Read a /proc/<pid>/stat line. The name in it may hold spaces and parentheses."""
    before, _, after = text.rpartition(")")
    fields = after.split()
    return Stat(name=before.partition("(")[2], parent=int(fields[1]), ticks=int(fields[11]) + int(fields[12]))


def processes(proc: Path = _PROC) -> dict[int, Stat]:
    """All processes by id."""
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            # It may end while we look.
            with contextlib.suppress(OSError):
                found[int(entry.name)] = parse_stat((entry / "stat").read_text(errors="replace"))
    return found


@dataclass(frozen=True)
class CpuSample:
    """CPU seconds of each process of a tree at one moment."""

    seconds: Mapping[int, float]
    names: Mapping[int, str]

    def since(self, before: CpuSample) -> dict[str, float]:
        """CPU seconds used since `before` by process name, largest first; names that occur twice are added up.

        What a process used after its last sample is lost when it ends.
        """
        used: dict[str, float] = {}
        for pid, seconds in self.seconds.items():
            name = self.names[pid]
            used[name] = used.get(name, 0.0) + seconds - before.seconds.get(pid, 0.0)
        return dict(sorted(used.items(), key=lambda item: -item[1]))


def sample_tree(root: int, proc: Path = _PROC) -> CpuSample:
    """CPU time of process `root` and everything below it."""
    stats = processes(proc)
    tree = _tree(root, stats)
    tick = os.sysconf("SC_CLK_TCK")
    return CpuSample(
        seconds={pid: stats[pid].ticks / tick for pid in tree},
        names={pid: _label(pid, stats[pid].name, proc) for pid in tree},
    )


def machine_seconds(proc: Path = _PROC) -> float:
    """CPU seconds of everything on this machine since it started, idle time and waiting left out."""
    fields = (proc / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def tree_names(root: int, proc: Path = _PROC) -> dict[int, str]:
    """The names of process `root` and everything below it, by process id."""
    stats = processes(proc)
    return {pid: _label(pid, stats[pid].name, proc) for pid in _tree(root, stats)}


def _tree(root: int, stats: Mapping[int, Stat]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    tree, todo = [], [root] if root in stats else []
    while todo:
        pid = todo.pop()
        tree.append(pid)
        todo += children.get(pid, [])
    return tree


def _label(pid: int, name: str, proc: Path) -> str:
    """The model's name for a Python-backend stub, whose argument is `<model>/<version>/model.py`, else `name`."""
    with contextlib.suppress(OSError):
        for argument in (proc / str(pid) / "cmdline").read_bytes().split(b"\0"):
            path = Path(os.fsdecode(argument))
            if path.name == _STUB_SCRIPT and len(path.parts) > 2:
                return path.parts[-3]
    return name


def is_local(host: str) -> bool:
    """Whether `host` is this machine by a loopback address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_server(port: int, proc: Path = _PROC) -> int | None:
    """The tritonserver whose tree listens on TCP `port`; without one, whoever listens; None if nobody is found."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    if not sockets:
        return None
    stats = processes(proc)
    for holder in sorted(stats):
        if _holds(holder, sockets, proc):
            return _server_above(holder, stats)
    return None


def _listening(port: int, proc: Path) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


def _holds(pid: int, sockets: set[str], proc: Path) -> bool:
    # Processes of other users cannot be looked into.
    with contextlib.suppress(OSError):
        for descriptor in (proc / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in sockets:
                    return True
    return False


def _server_above(pid: int, stats: Mapping[int, Stat]) -> int:
    current = pid
    while current in stats:
        if stats[current].name.startswith(_SERVER):
            return current
        current = stats[current].parent
    return pid
