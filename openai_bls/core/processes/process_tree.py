"""Processes that must not outlive their starter: the guardian's command line, the interpreter, marks, descendants, and
what they must not inherit."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from openai_bls.core.processes.machine import SERVER_MARK

GUARDIAN = Path(__file__).with_name("guardian.py")
"""Script of the guardian process, for tritonserver, an engine's process and the builder's worker."""

OUTER_LIBRARY_PATH_VARIABLE = "OPENAI_BLS_OUTER_LD_LIBRARY_PATH"
"""LD_LIBRARY_PATH as it was before the launcher added the libraries of the wheel's tritonserver."""

# Environment variables by which a process takes itself for a rank of an MPI job.
_OF_MPI = ("OMPI_", "ORTE_", "PMIX_", "PMI_", "PRTE_")
# What an operator sets, such as the network interfaces to use: TensorRT-LLM's own model.py keeps it as well.
_MPI_SETTINGS = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
# Of these, what mpirun itself tells its ranks.
_OF_MPIRUN = ("OMPI_MCA_orte_", "OMPI_MCA_ess")


def guarded(
    command: Sequence[str],
    lifeline: int,
    grace_s: float,
    *,
    prefix: str = "",
    folder: str = "",
    ranks: int = 0,
    follow: float = 0.0,
    own_session: bool = True,
) -> list[str]:
    """Command line that runs `command` under a guardian.

    Args:
        command: program and arguments.
        lifeline: file descriptor of the guardian's end of a socket pair; the command is stopped when the other end
            closes.
        grace_s: seconds from an order to end to SIGKILL.
        prefix: name prefix of shared-memory regions that the guardian removes at the end; empty removes none.
        folder: temporary folder of the command, which the guardian removes at the end; empty if it has none.
        ranks: number of ranks that an mpirun as the command starts; 0 for any other command.
        follow: seconds that the other ranks, or the command's own children, have to leave.
        own_session: whether the command gets a session; else it gets a process group in this one.
    """
    options = [str(lifeline), str(grace_s), prefix, folder, str(ranks), str(follow), str(int(own_session))]
    return [interpreter(), "-I", "-S", str(GUARDIAN), *options, *command]


def interpreter() -> str:
    """Path of this Python's interpreter; where Python is embedded, as in Triton's stub, `sys.executable` may be another
    program."""
    running = Path(sys.executable or "/")
    if running.name.startswith("python"):
        return str(running)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = os.pathsep.join([str(Path(sys.exec_prefix) / "bin"), str(Path(sys.base_exec_prefix) / "bin")])
    return shutil.which(version, path=folders) or shutil.which("python3", path=folders) or "python3"


def marked_processes(mark: str, variable: str = SERVER_MARK) -> list[int]:
    """Process ids of the live processes whose environment has `mark` in `variable`, zombies not counted."""
    wanted = f"{variable}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # A zombie's environment is empty; other users' processes cannot be read.
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of the processes below a process, parents first; none of a process that has gone."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, tasks.read_text(encoding="utf-8").split()):
                found += [child, *descendants(child)]
    return found


def names_a_rank(variable: str) -> bool:
    """True for environment variables that must not reach a process that starts ranks of its own."""
    if variable.startswith(_MPI_SETTINGS):
        return variable.startswith(_OF_MPIRUN)
    return variable.startswith(_OF_MPI)
