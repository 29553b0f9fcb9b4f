"""Process of a running tritonserver: started under a guardian, drained or killed, with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.core.processes.machine import SERVER_MARK
from openai_bls.core.processes.process_tree import guarded, marked_processes
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.tritonserver.command import flag_values, has_backend_setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openai_bls.launcher.tritonserver.job import Job

DEFAULT_EXIT_TIMEOUT_SECONDS = 30

# tritonserver counts its exit timeout in steps of its own and then joins its threads; the guardian
# gives it this much more before it kills.
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05

# Ranks without rank 0 have nothing left to do but to unload.
FOLLOW_SECONDS = 15.0


def full_command(command: Sequence[str], prefix: str, job: Job | None = None) -> list[str]:
    """`command` with what every server is started with.

    Args:
        command: command that `openai_bls.launcher.tritonserver.command.prepare` makes.
        prefix: beginning of the names of the server's shared-memory regions, unless `command` has one.
        job: job that starts the command once per rank.
    """
    whole = list(command)
    if not flag_values(whole, "--exit-timeout-secs"):
        whole.append(f"--exit-timeout-secs={DEFAULT_EXIT_TIMEOUT_SECONDS}")
    if job is not None:
        return job.command(whole, prefix)
    if not has_backend_setting(whole, "shm-region-prefix-name"):
        whole.append(f"--backend-config=python,shm-region-prefix-name={prefix}")
    return whole


class ServerProcess:
    """A tritonserver, or the mpirun of several, and the guardian that started it.

    Args:
        command: the full command, as `openai_bls.launcher.tritonserver.command.prepare` makes it.
        environment: the environment to run it in.
        log_path: the file for everything that the server and its models print.
        job: job that starts the command once per rank.

    Raises:
        LaunchError: it could not be run.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log_path: Path, job: Job | None = None
    ) -> None:
        self.log_path = log_path
        # A separate prefix lets a killed server's regions be told from those of others and
        # removed.
        self.mark = f"openai_bls_{os.getpid()}_{secrets.token_hex(4)}_"
        whole = full_command(command, self.mark, job)
        self.exit_timeout = float(flag_values(whole, "--exit-timeout-secs")[-1])
        prefix = "" if has_backend_setting(command, "shm-region-prefix-name") else self.mark
        ranks, follow = (job.world_size, FOLLOW_SECONDS) if job is not None else (0, 0.0)
        self._lifeline, theirs = socket.socketpair()
        grace = self.exit_timeout + _GRACE_SECONDS
        with theirs, log_path.open("ab") as log:
            self._guardian = subprocess.Popen(
                guarded(whole, theirs.fileno(), grace, prefix=prefix, ranks=ranks, follow=follow),
                env={**environment, SERVER_MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self.pid = int(self._lifeline.recv(32) or b"0")
        except BaseException:
            self._lifeline.close()
            raise
        if self.pid == 0:
            self._lifeline.close()
            self._guardian.wait()
            raise LaunchError(f"{Path(whole[0]).name} could not be run; see {log_path}")

    def poll(self) -> int | None:
        """The server's exit code, or None while it runs."""
        return self._guardian.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the server and all its processes have gone and return the exit code."""
        code = self._guardian.wait(timeout)
        self._lifeline.close()
        if code < 0:
            self._clean_up_after_the_guardian()
        return code

    def drain(self) -> None:
        """Ask the server to finish what it does and leave; a second call kills it."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server now."""
        self._send(signal.SIGQUIT)

    def stop(self) -> int:
        """Drain, or kill when the time for that is over; the exit code."""
        if self.poll() is None:
            self.drain()
        # The guardian keeps the deadline. This one only catches a guardian that hangs.
        try:
            return self.wait(self.exit_timeout + 2 * _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            return self.wait()

    def leftovers(self) -> list[int]:
        """Processes of this server that still live; after its end there should be none."""
        return marked_processes(self.mark)

    def _clean_up_after_the_guardian(self) -> None:
        # It was killed, and its server with it. Stubs mostly see that and leave, but not always. An mpirun got a
        # signal, and takes a moment to end its ranks and to remove its files, as the guardian of an engine does.
        deadline = time.monotonic() + _GRACE_SECONDS
        while self.leftovers() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for pid in self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for region in Path("/dev/shm").glob(f"{self.mark}*"):
            region.unlink(missing_ok=True)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._guardian.send_signal(number)
