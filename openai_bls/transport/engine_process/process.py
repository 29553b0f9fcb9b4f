"""Engine's process as Triton's side starts it: in another interpreter, under a guardian, its log taken over."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.processes import folder as process_folder
from openai_bls.core.processes.machine import ENGINE_MARK
from openai_bls.core.processes.process_tree import (
    OUTER_LIBRARY_PATH_VARIABLE,
    descendants,
    guarded,
    interpreter,
    marked_processes,
    names_a_rank,
)
from openai_bls.core.settings import ENV_PREFIX, EngineSettings
from openai_bls.engines.registry import VARIABLE as PLUGINS_VARIABLE
from openai_bls.engines.registry import passed_on
from openai_bls.transport.engine_process.log_lines import LogPump

logger = logging.getLogger(__name__)

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
"""Script that the interpreter runs."""

# From the order to end to SIGKILL: an engine ends its requests and frees its GPUs.
_GRACE_S = 20.0
# What the engine's own processes have to leave, and to remove their shared memory.
_FOLLOW_S = 1.0
_POLL_S = 0.05

# Right for this interpreter alone.
_OF_PYTHON = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
# The process's own settings come on its command line.
_SETTINGS = {f"{ENV_PREFIX}{name.upper()}" for name in EngineSettings.__struct_fields__}


class EngineProcess:
    """An engine's process and its guardian.

    Args:
        python: interpreter of the process: an absolute path, or a command on PATH.
        arguments: command-line arguments of the process, without its socket.
        environ: environment variables of this process, or others to begin with.

    Raises:
        EngineLoadError: the interpreter cannot be run.
    """

    def __init__(self, python: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        program = find_interpreter(python, environ)
        self._mark = secrets.token_hex(8)
        self._folder, found = process_folder.make(environment(program, environ))
        self.socket = f"{self._folder}/engine.sock"
        """Path of the socket that the process will listen on, in a folder of this user alone."""
        self._lifeline, theirs = socket.socketpair()
        reader, writer = os.pipe()
        command = [program, str(BOOTSTRAP), *arguments, "--socket", self.socket]
        try:
            with theirs:
                self._guardian = subprocess.Popen(
                    guarded(
                        command, theirs.fileno(), _GRACE_S, folder=self._folder, follow=_FOLLOW_S, own_session=False
                    ),
                    env=found | {ENGINE_MARK: self._mark},
                    stdin=subprocess.DEVNULL,
                    stdout=writer,
                    stderr=writer,
                    pass_fds=[theirs.fileno()],
                    # A Ctrl-C at the terminal of a bare tritonserver is not for this: it would end running requests.
                    **({"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}),
                )
        except OSError as error:
            os.close(reader)
            self._lifeline.close()
            process_folder.remove(self._folder)
            raise EngineLoadError(f"the engine's process cannot be started: {error.strerror}") from None
        finally:
            os.close(writer)
        self._program = program
        self._log = LogPump(reader, logger)
        self.pid = int(self._lifeline.recv(32) or b"0")
        """Process id of the engine's process itself; 0 if it could not be run."""

    def poll(self) -> int | None:
        """Exit status, once the process and all that it started have gone; None before."""
        return self._guardian.poll()

    def end(self) -> None:
        """Tell the process to end well, which the guardian sees to."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        self._signal(signal.SIGQUIT)

    def stopped(self) -> bool:
        """True while the process, or one that it has started, is stopped by a signal."""
        return any(map(_is_stopped, [self.pid, *descendants(self.pid)]))

    def wait_or_kill(self) -> None:
        """Wait until the process, which is lost, has gone with all that it has started; kill it if it lives."""
        try:
            self._guardian.wait(2 * _FOLLOW_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.wait()

    def wait(self) -> None:
        """Wait until the process and all that it has started have gone; those that do not end are killed."""
        try:
            self._guardian.wait(_GRACE_S + 2 * _FOLLOW_S)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
        self._lifeline.close()
        if self._guardian.returncode < 0:
            self._clean_up_after_the_guardian()
        self._log.join(_FOLLOW_S)

    def why_ended(self) -> str:
        """Why the process has ended, as a sentence; after `wait`."""
        if self._log.error:
            return self._log.error
        status = self._guardian.returncode
        last = f"; its last line: {self._log.last_line}" if self._log.last_line else ""
        if self.pid == 0:
            return f"{self._program} could not be run{last}"
        number = -status if status < 0 else status - 128
        if number == signal.SIGKILL:
            return f"the engine's process was killed (SIGKILL), as Linux does when memory runs out{last}"
        with contextlib.suppress(ValueError):
            return f"the engine's process ended by {signal.Signals(number).name}{last}"
        return f"the engine's process ended with exit status {status}{last}"

    def _clean_up_after_the_guardian(self) -> None:
        """End what a killed engine's process had started; its guardian was killed, too."""
        deadline = time.monotonic() + _GRACE_S
        while (left := marked_processes(self._mark, ENGINE_MARK)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        process_folder.remove(self._folder)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._guardian.send_signal(number)


def find_interpreter(python: str, environ: Mapping[str, str]) -> str:
    """Path of the interpreter that `python` names.

    Raises:
        EngineLoadError: there is none.
    """
    if "/" in python and not python.startswith("/"):
        raise EngineLoadError(f"engine_python is {python!r}: an absolute path or a command on PATH is needed")
    found = shutil.which(python, path=environ.get("PATH", os.defpath))
    if found is None:
        raise EngineLoadError(
            f"there is no interpreter {python}, which engine_python names for the engine's process: make its "
            "environment, with `openai-bls install-engine` for example"
        )
    return found


def environment(program: str, base: Mapping[str, str]) -> dict[str, str]:
    """Environment of the process that `program` runs.

    Args:
        program: path of the interpreter.
        base: environment to begin with.
    """
    stay = set() if program == interpreter() else _OF_PYTHON
    found = {name: value for name, value in base.items() if not (name in stay or _stays(name))}
    if OUTER_LIBRARY_PATH_VARIABLE in base:
        # The launcher has put the libraries of the wheel's tritonserver before it.
        found["LD_LIBRARY_PATH"] = base[OUTER_LIBRARY_PATH_VARIABLE]
        if not found["LD_LIBRARY_PATH"]:
            del found["LD_LIBRARY_PATH"]
    found["PATH"] = os.pathsep.join([str(Path(program).parent), base.get("PATH", os.defpath)])
    found["PYTHONUNBUFFERED"] = "1"
    # The interpreter may have none of the distributions of engines installed.
    found[PLUGINS_VARIABLE] = passed_on()
    return found


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _stays(name: str) -> bool:
    """True for a variable that the process does not get."""
    return (
        name in _SETTINGS
        # A secret of /v1.
        or name == f"{ENV_PREFIX}API_KEY"
        or name.startswith(f"{ENV_PREFIX}ENGINE")
        or names_a_rank(name)
        or name == OUTER_LIBRARY_PATH_VARIABLE
    )
