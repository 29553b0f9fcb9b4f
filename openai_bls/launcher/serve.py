"""`serve`: a server in the foreground, with progress, examples and draining."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.core.settings import ENV_PREFIX
from openai_bls.launcher import checks, progress
from openai_bls.launcher.abandoned_stubs import AbandonedStubs
from openai_bls.launcher.console import Console, fail
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.examples import examples
from openai_bls.launcher.forwarded_headers import forwarded_headers
from openai_bls.launcher.logs import LoadWatcher, LogFollower, RankWatcher, is_request, worth_showing
from openai_bls.launcher.mpi_job import MpiJob
from openai_bls.launcher.ports import Ports
from openai_bls.launcher.process import DEFAULT_EXIT_TIMEOUT_SECONDS, ServerProcess, full_command
from openai_bls.launcher.ranks import RankOptions, orchestrator_flags, plan_ranks
from openai_bls.launcher.readiness import expected_models, not_ready, served_models, serves_openai
from openai_bls.launcher.server import Server, flag_values, has_flag, prepare
from openai_bls.launcher.server_release import closed_shared_memory, exposure_warning, model_control
from openai_bls.launcher.stub_watch import StubWatch, stubs
from openai_bls.launcher.supervisor import DEFAULT_RESTARTS, WINDOW_SECONDS, Backoff
from openai_bls.pipeline.restarts import SERVER, VARIABLE, RestartCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

_POLL_SECONDS = 0.1
_REMIND_SECONDS = 15.0
_LOOK_SECONDS = 1.0
_KEEP_LOG_BYTES = 16 * 1024 * 1024
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Flags that the launcher must know the values of, so they have to come as its own options.
_OWN_FLAGS = {
    "--model-repository": "--model-repository",
    "--model-store": "--model-repository",
    "--http-port": "--http-port",
    "--grpc-port": "--grpc-port",
    "--metrics-port": "--metrics-port",
    "--http-address": "--triton-host",
    "--grpc-address": "--triton-host",
    "--metrics-address": "--triton-host",
    "--exit-timeout-secs": "--exit-timeout",
    "--log-file": "--log-file",
}


@dataclass(frozen=True)
class ServeOptions:
    """Options of `openai-bls serve`."""

    repository: Path = Path("model_repository")
    ports: Ports = field(default_factory=Ports)
    host: str = "127.0.0.1"
    """Address of /v1."""
    triton_host: str = ""
    """Address of Triton's own ports; empty is that of /v1."""
    log_file: Path | None = None
    exit_timeout: int = DEFAULT_EXIT_TIMEOUT_SECONDS
    restarts: int = DEFAULT_RESTARTS
    """Restarts within ten minutes, of the server and of each model; 0 for none."""
    verbose: bool = False
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_ca_certs: Path | None = None
    ranks: RankOptions = field(default_factory=RankOptions)
    dry_run: bool = False
    further_repositories: Sequence[Path] = ()
    extra: Sequence[str] = ()

    @property
    def triton_address(self) -> str:
        """Address of Triton's own ports."""
        return self.triton_host or self.host


def triton_flags(options: ServeOptions) -> list[str]:
    """The tritonserver flags that `options` stand for."""
    for flag, own in _OWN_FLAGS.items():
        if has_flag(options.extra, flag):
            raise LaunchError(f"{flag} cannot stand after --: give {own} before it")
    return [
        *(f"--model-repository={path}" for path in (options.repository, *options.further_repositories)),
        f"--http-port={options.ports.http}",
        f"--grpc-port={options.ports.grpc}",
        f"--metrics-port={options.ports.metrics}",
        *(f"--{name}-address={options.triton_address}" for name in ("http", "grpc", "metrics")),
        f"--exit-timeout-secs={options.exit_timeout}",
        *options.extra,
    ]


@dataclass(frozen=True)
class Start:
    """Plan of a start: the server, the command of rank 0, its environment, and the MPI job if there is one."""

    server: Server
    command: Sequence[str]
    environment: Mapping[str, str]
    job: MpiJob | None


def plan(options: ServeOptions) -> Start:
    """Server, command, environment and MPI job of `options`; starts nothing.

    Raises:
        LaunchError: there is no server or no repository, or the options do not fit.
    """
    if options.ranks.mode == "orchestrator" or options.ranks.hosts or options.ranks.hostfile:
        # Other machines and the engine's workers need not have this working directory.
        further = [path.absolute() for path in options.further_repositories]
        options = replace(options, repository=options.repository.absolute(), further_repositories=further)
    checks.check_repository(options.repository)
    for path in options.further_repositories:
        checks.check_further_repository(path)
    names = expected_models(options.repository, options.extra)
    flags = [*triton_flags(options), *closed_shared_memory(options.extra)]
    flags += forwarded_headers(options.repository, options.extra, os.environ)
    if options.ranks.mode == "orchestrator":
        flags += orchestrator_flags(options.extra)
    server, command, environment = prepare(flags)
    environment["OPENAI_BLS_HTTP_HOST"] = options.host
    environment["OPENAI_BLS_HTTP_PORT"] = str(options.ports.openai)
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        if (path := getattr(options, name)) is not None:
            environment[ENV_PREFIX + name.upper()] = str(path.absolute())
    job, environment = plan_ranks(options.ranks, options.repository, names, options.extra, environment)
    if options.restarts and job is None:
        command = [*command, *model_control(options.extra)]
    return Start(server, command, environment, job)


def serve(options: ServeOptions) -> int:
    """Run a server until it ends or is stopped; returns its exit code.

    Raises:
        LaunchError: a check failed, and nothing was started.
    """
    console = Console()
    start = plan(options)
    if options.dry_run:
        console.line(dry_run(start, os.environ))
        return 0
    checks.check_runtime(start.server)
    checks.check_engine(options.repository)
    checks.check_ports(options.ports, options.host, options.triton_address)
    options = replace(options, ports=checks.with_tls(options.ports, options.repository, start.environment))
    log_path = _log_path(options)
    console.step(f"tritonserver ({start.server.version}) from {start.server.binary}; log in {log_path}")
    if warning := exposure_warning(start.server.release, options.triton_address):
        console.step(warning)
    if start.job is not None:
        console.step(start.job.summary())
    return _run(options, start, console, log_path)


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
    with _stop_requests() as stops:
        try:
            while True:
                process = ServerProcess(start.command, environment, log_path, start.job)
                foreground = _Foreground(options, start, console, process, stops, log, counts, again=served)
                try:
                    foreground.run()
                finally:
                    # Reached with a live server only by an exception, such as a closed standard output.
                    code = process.stop()
                # A load that the server gave up for want of CPU time has every chance at the next start.
                served = served or foreground.served or foreground.gave_up
                if counts is None or not served or not foreground.failed or not _wait(console, backoff, stops):
                    return code
                counts.add(SERVER)
        finally:
            log.close()
            if counts is not None:
                counts.close()
            if options.log_file is None and code == 0:
                log_path.unlink(missing_ok=True)


def _wait(console: Console, backoff: Backoff, stops: Callable[[], int]) -> bool:
    """Wait until the server is to be started again; False if it is not."""
    wait = backoff.next(time.monotonic())
    if wait is None:
        console.step(f"no further restart: that was the last one within {WINDOW_SECONDS / 60:.0f} minutes (--restarts)")
        return False
    console.step("starting the server again" + (f" in {wait:.0f} s" if wait else ""))
    until = time.monotonic() + wait
    while not stops() and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    return not stops()


def dry_run(start: Start, base: Mapping[str, str]) -> str:
    """A shell script that does what `start` says: the changes to the environment `base`, then the command."""
    lines = [f"unset {name}" for name in sorted(base) if name not in start.environment]
    changed = {name: value for name, value in sorted(start.environment.items()) if base.get(name) != value}
    lines += [f"export {name}={shlex.quote(value)}" for name, value in changed.items()]
    if start.job is not None:
        lines += [f"# {note}" for note in start.job.notes]
    # At a start the prefix also holds the launcher's process id and a random part.
    return "\n".join([*lines, shlex.join(full_command(start.command, "openai_bls_", start.job))])


def _log_path(options: ServeOptions) -> Path:
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


@contextlib.contextmanager
def _stop_requests() -> Iterator[Callable[[], int]]:
    """Counter of Ctrl-C and its like while the server runs."""
    count = 0

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1

    previous = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield lambda: count
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Foreground:
    """The loop around one server: read its log, ask whether it is ready, pass stop requests on."""

    def __init__(
        self,
        options: ServeOptions,
        start: Start,
        console: Console,
        process: ServerProcess,
        stops: Callable[[], int],
        log: LogFollower,
        counts: RestartCounts | None,
        *,
        again: bool,
    ) -> None:
        job = start.job
        self._options = options
        self._counts = counts
        self._again = again
        self._watches = job is None and flag_values(start.command, "--model-control-mode")[-1:] == ["explicit"]
        self._watch: StubWatch | None = None
        self._console = console
        self._process = process
        self._stops = stops
        self._names = expected_models(options.repository, options.extra, options.further_repositories)
        self._openai = serves_openai(self._names, options.ports)
        self._engines = len(checks.engine_models(self._names))
        self._log = log
        self._watcher = LoadWatcher()
        self._ranks = RankWatcher(job.world_size if job is not None else 1)
        self._program = "mpirun" if job is not None else "tritonserver"
        self.ready = False
        self.failed = False
        """It has ended with an error, and nobody has asked for its end."""
        self.gave_up = False
        """It has given up the process of a model that was loading, and would have waited for its end for ever."""
        self._abandoned = AbandonedStubs()
        self._looked = 0.0
        self._stopping = 0
        self._last_news = console.elapsed
        self._bar = progress.Bar("loading", 0)

    def run(self) -> None:
        """Follow the server to its end."""
        self._console.step(f"loading {', '.join(self._names)}")
        with progress.bar("loading", len(self._names), "models") as self._bar:
            self._follow()

    def _follow(self) -> None:
        while True:
            # The exit code is read first, so that the log is complete when it is there.
            code = self._process.poll()
            self._read_log()
            if code is not None:
                self._stop_watching()
                self._ended(code)
                return
            self._pass_stops_on()
            if not self.ready and not self._stopping:
                self._look_for_readiness()
                self._look_for_abandoned_stubs()
            time.sleep(_POLL_SECONDS)

    @property
    def served(self) -> bool:
        """It has been ready. Of a job rank 0 is, which does not know that another rank's model fails to load."""
        return self.ready and not (self._program == "mpirun" and self._watcher.failed)

    def _read_log(self) -> None:
        for line in self._log.lines():
            news = self._watcher.feed(line)
            self._ranks.feed(line)
            if self._options.verbose or (worth_showing(line) and not self._watcher.in_usage):
                # Of requests as it is: other programs read that as JSON.
                self._console.line(line if is_request(line) else f"    {line}")
            if news and not self.ready and not self._stopping:
                self._news(news)

    def _news(self, text: str) -> None:
        self._console.step(text)
        self._last_news = self._console.elapsed
        self._bar.reach(len(self._watcher.loaded))

    def _look_for_readiness(self) -> None:
        options = self._options
        missing = not_ready(
            options.triton_address, options.ports, self._names, openai=self._openai, openai_host=options.host
        )
        if not missing:
            self.ready = True
            self._bar.close()
            self._announce()
            if self._counts is not None and self._watches:
                self._watch = StubWatch(
                    self._process.pid,
                    (options.triton_address, options.ports.http),
                    (options.host, options.ports.openai, options.ports.tls) if self._openai else None,
                    options.restarts,
                    self._console.step,
                    self._counts.add,
                )
        elif self._console.elapsed - self._last_news > _REMIND_SECONDS:
            waiting = self._watcher.waiting or missing
            self._news(f"still waiting for {', '.join(waiting)}")

    def _look_for_abandoned_stubs(self) -> None:
        if self._console.elapsed - self._looked < _LOOK_SECONDS:
            return
        self._looked = self._console.elapsed
        server = self._process.pid
        for model in self._abandoned.kill(server, stubs(server)):
            self.gave_up = True
            self._news(f"tritonserver has given up {model}, which had no CPU time for a second; killing it")

    def _announce(self) -> None:
        host, ports = self._options.host, self._options.ports
        models = served_models(host, ports, self._engines) if self._openai else []
        model = models[0] if models else checks.OPENAI_MODEL
        text = examples(host, ports, self._names, model, self._options.triton_address)
        self._console.step("ready")
        if text and not self._again:
            self._console.line(f"\n{text}\n")
        where = f"HTTP {ports.http}, gRPC {ports.grpc}, metrics {ports.metrics}"
        v1 = f", OpenAI base URL {ports.openai_root(host)}/v1" if self._openai else ""
        if models:
            self._console.line(f"Models: {', '.join(models)}.")
        self._console.line(f"Listening: {where}{v1}. Ctrl-C stops.")

    def _pass_stops_on(self) -> None:
        while self._stopping < min(self._stops(), 2):
            self._stopping += 1
            self._bar.close()
            self._stop_watching()
            if self._stopping == 1:
                seconds = self._options.exit_timeout
                self._console.step(f"stopping: up to {seconds} s for running requests (Ctrl-C again kills)")
                self._process.drain()
            else:
                self._console.step("killing")
                self._process.kill()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _ended(self, code: int) -> None:
        self.failed = code != 0 and not self._stopping
        if self._stopping:
            self._console.step(f"stopped (exit code {code})")
        elif code != 0 or not self.ready:
            reasons = [reason for reason in (self._watcher.reason(), self._ranks.reason()) if reason]
            reason = "; ".join(reasons) or f"{self._program} ended with exit code {code}"
            fail(f"{reason} (log: {self._process.log_path})")
