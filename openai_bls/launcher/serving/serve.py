"""`serve`: a server in the foreground, started again where it fails."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.launcher import checks, workspace
from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.logs import LogFollower
from openai_bls.launcher.recovery.supervisor import WINDOW_SECONDS, Backoff
from openai_bls.launcher.serving import exposure
from openai_bls.launcher.serving.foreground import POLL_SECONDS, Foreground
from openai_bls.launcher.serving.options import ServeOptions
from openai_bls.launcher.serving.plan import Start, dry_run, plan
from openai_bls.launcher.stop_requests import stop_requests
from openai_bls.launcher.tritonserver.process import ServerProcess
from openai_bls.launcher.variables import unknown_variables
from openai_bls.pipeline.metrics.restarts import SERVER, VARIABLE, RestartCounts

if TYPE_CHECKING:
    from collections.abc import Callable

_KEEP_LOG_BYTES = 16 * 1024 * 1024


def serve(options: ServeOptions, console: Console, *, builds: bool = False) -> int:
    """Run a server until it ends or is stopped; returns its exit code.

    Args:
        options: options of the server.
        console: console that the progress is written to.
        builds: a dry run whose script builds the engine first, so that there need be none.

    Raises:
        LaunchError: a check failed, and nothing was started.
    """
    if options.dry_run:
        return _dry_run(options, console, builds=builds)
    start = plan(options)
    checks.check_runtime(start.server)
    problems = checks.check_some_engine(options.repository)
    checks.check_ports(options.ports, options.host, options.triton_address)
    options = replace(options, ports=checks.with_tls(options.ports, options.repository, start.environment))
    log_path = make_log(options)
    console.step(f"tritonserver ({start.server.version}) from {start.server.binary}; log in {log_path}")
    console.step(exposure.sentence(options, start.environment, start.models, start.keyless))
    for said in [*problems, *unknown_variables(os.environ)]:
        console.step(f"warning: {said}")
    if start.job is not None:
        console.step(start.job.summary())
    return _run(options, start, console, log_path)


def _dry_run(options: ServeOptions, console: Console, *, builds: bool) -> int:
    """Print the script, after the checks of a start; ports that are taken are said, since the script is for later."""
    with workspace.draft(options.repository) as there:
        start = plan(replace(options, repository=there))
        text = dry_run(start, os.environ)
    checks.check_runtime(start.server)
    problems = [] if builds else checks.check_some_engine(options.repository)
    taken = checks.taken_ports(options.ports, options.host, options.triton_address)
    checks.with_tls(options.ports, options.repository, start.environment)
    if options.log_file is not None:
        _check_log(options.log_file)
    for said in [*problems, *(f"port {port} is taken just now" for port in taken)]:
        console.line(f"# {said}")
    console.line(text.replace(str(there), str(options.repository)))
    return 0


def _run(options: ServeOptions, start: Start, console: Console, log_path: Path) -> int:
    """Run the server, again and again if it fails; the exit code of the last time."""
    counts = RestartCounts() if options.restarts else None
    environment = start.environment if counts is None else {**start.environment, VARIABLE: str(counts.path)}
    # A container shows everything, for months, and nobody reads the file that it passes through.
    log = LogFollower(log_path, _KEEP_LOG_BYTES if options.verbose and options.log_file is None else None)
    backoff = Backoff(options.restarts)
    # A server that has never been ready would mostly not be the next time.
    served = False
    code = 1
    with stop_requests() as stops:
        try:
            while True:
                process = ServerProcess(start.command, environment, log_path, start.job)
                foreground = Foreground(options, start, console, process, stops, log, counts, again=served)
                try:
                    foreground.run()
                finally:
                    # Reached with a live server only by an exception, such as a closed standard output.
                    code = process.stop()
                if foreground.failed and code == 0:
                    # It was told to end, since it would have stayed without a model that it cannot do without.
                    code = 1
                # A load that failed for want of CPU time has every chance at the next start.
                served = served or foreground.served or foreground.starved
                if counts is None or not served or not foreground.failed:
                    return code
                if not _wait(console, backoff.next(time.monotonic(), starved=foreground.starved), stops):
                    return code
                counts.add(SERVER)
        finally:
            log.close()
            if counts is not None:
                counts.close()
            if options.log_file is None and code == 0:
                log_path.unlink(missing_ok=True)


def _wait(console: Console, wait: float | None, stops: Callable[[], int]) -> bool:
    """Wait until the server is to be started again; False if it is not, as when `wait` is None."""
    if wait is None:
        console.step(f"no further restart: that was the last one within {WINDOW_SECONDS / 60:.0f} minutes (--restarts)")
        return False
    console.step("starting the server again" + (f" in {wait:.0f} s" if wait else ""))
    until = time.monotonic() + wait
    while not stops() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return not stops()


def _check_log(path: Path) -> None:
    """Check that `make_log` could write the log, and write nothing.

    Raises:
        LaunchError: it could not.
    """
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if path.is_dir() or not above.is_dir() or not os.access(path if path.exists() else above, os.W_OK):
        raise LaunchError(f"--log-file {path} cannot be written")


def make_log(options: ServeOptions) -> Path:
    """The log of the server: --log-file, emptied, or a new temporary file.

    Raises:
        LaunchError: --log-file cannot be written.
    """
    if options.log_file is not None:
        try:
            options.log_file.parent.mkdir(parents=True, exist_ok=True)
            options.log_file.write_bytes(b"")
        except OSError as error:
            raise LaunchError(f"--log-file {options.log_file} cannot be written: {error.strerror}") from None
        return options.log_file
    handle, name = tempfile.mkstemp(prefix="openai_bls-", suffix=".log")
    os.close(handle)
    return Path(name)
