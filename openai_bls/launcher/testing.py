"""Real tritonserver on free ports, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.core.manifest import MANIFEST_NAME
from openai_bls.launcher import checks, jobs
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.logs import LOCK_TIMED_OUT, LoadWatcher, tail
from openai_bls.launcher.readiness import expected_models, not_ready
from openai_bls.launcher.recovery.abandoned_stubs import AbandonedStubs
from openai_bls.launcher.recovery.stub_watch import stubs
from openai_bls.launcher.tritonserver.command import prepare
from openai_bls.launcher.tritonserver.ports import Ports, lease_ports
from openai_bls.launcher.tritonserver.process import ServerProcess
from openai_bls.triton_models.tensors.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.05
_ATTEMPTS = 3
"""Starts at most, where a port is taken."""
_PORT_TAKEN = ("already in use", "Address already in use", "failed to bind")
# tritonserver ends no sooner than its next look at the metrics of CPU and GPU; the default is 2,000.
_METRICS_INTERVAL = "--metrics-interval-ms=100"
_ABANDONED = "tritonserver has given up a model whose stub lives"
_LOOK_SECONDS = 1.0
"""Seconds between two looks for such stubs."""


class ServerFailedError(LaunchError):
    """The server ended, or was not ready in time; the message ends with its log's last lines."""


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready, on free ports of 127.0.0.1."""

    process: ServerProcess
    ports: Ports

    @property
    def http_url(self) -> str:
        """Triton's HTTP endpoint, such as http://127.0.0.1:21000."""
        return f"http://{_HOST}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        """Triton's gRPC endpoint as tritonclient wants it: host and port without a scheme."""
        return f"{_HOST}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """The Prometheus page."""
        return f"http://{_HOST}:{self.ports.metrics}/metrics"

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI clients, ending in /v1."""
        return f"{self.ports.openai_root(_HOST)}/v1"

    @property
    def pid(self) -> int:
        """The process id of tritonserver itself, or of the mpirun that started several."""
        return self.process.pid

    @property
    def log_path(self) -> Path:
        """The file with everything that the server and its models printed."""
        return self.process.log_path


@contextlib.contextmanager
def run_server(
    repository: Path,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    wait_openai: bool | None = None,
    *,
    log_path: Path | None = None,
    timeout: float = 270.0,
    auto_complete: bool = False,
) -> Iterator[RunningServer]:
    """Run a tritonserver on free ports until the block ends; as many of them as the engine has ranks.

    Args:
        repository: the model repository.
        env: environment variables added to this process's own.
        args: further tritonserver flags.
        wait_openai: whether readiness includes /v1; by default it does when `repository` has an
            `openai_bls` model.
        log_path: the log file to write; by default a temporary one, removed at the end.
        timeout: seconds until the server must be ready.
        auto_complete: first run each model in a separate process that completes its config.pbtxt, which is
            tritonserver's default. Ours are complete, and it is a third of the start of a server without torch.

    Raises:
        ServerFailedError: the server ended or was not ready in time, or left a process behind.
    """
    with contextlib.ExitStack() as stack:
        if log_path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="openai_bls-"))
            log_path = Path(folder) / "tritonserver.log"
        # Not resolved: a link can stand for a path that Triton cannot take.
        repository = repository.absolute()
        names = expected_models(repository, args)
        plan = _Plan(
            repository=repository,
            args=[_METRICS_INTERVAL, *args, *(() if auto_complete else ("--disable-auto-complete-config",))],
            env=env or {},
            log_path=log_path,
            names=names,
            openai=checks.OPENAI_MODEL in names if wait_openai is None else wait_openai,
            deadline=time.monotonic() + timeout,
        )
        running = plan.start(stack)
        try:
            yield running
        finally:
            running.process.stop()
            left = running.process.leftovers()
            if left:
                raise ServerFailedError(f"processes left behind by tritonserver: {left}")


@dataclass(frozen=True)
class _Plan:
    repository: Path
    args: Sequence[str]
    env: Mapping[str, str]
    log_path: Path
    names: Sequence[str]
    openai: bool
    deadline: float

    def start(self, stack: contextlib.ExitStack) -> RunningServer:
        taken = 0
        while True:
            ports = stack.enter_context(lease_ports())
            ports = checks.with_tls(ports, self.repository, {**os.environ, **self.env})
            running = RunningServer(self._spawn(ports), ports)
            try:
                self._await_ready(running)
            except BaseException as error:
                running.process.stop()
                if not isinstance(error, ServerFailedError):
                    raise
                # The lease keeps our own servers apart; a stranger may still have taken a port.
                is_taken = any(sign in str(error) for sign in _PORT_TAKEN)
                taken += is_taken
                starved = any(sign in str(error) for sign in (LOCK_TIMED_OUT, _ABANDONED))
                starved = starved and time.monotonic() < self.deadline
                if not starved and not (is_taken and taken < _ATTEMPTS):
                    raise
            else:
                return running

    def _spawn(self, ports: Ports) -> ServerProcess:
        flags = [
            *(f"--{name}-address={_HOST}" for name in ("http", "grpc", "metrics")),
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            f"--model-repository={self.repository}",
            *self.args,
        ]
        server, command, environment = prepare(flags)
        checks.check_runtime(server)
        environment["OPENAI_BLS_HTTP_HOST"] = _HOST
        environment["OPENAI_BLS_HTTP_PORT"] = str(ports.openai)
        request = jobs.JobRequest(self.repository, self.args, environment)
        job, environment = jobs.plan(jobs.defaults(), request)
        self.log_path.unlink(missing_ok=True)
        return ServerProcess(command, {**environment, **self.env}, self.log_path, job)

    def _await_ready(self, running: RunningServer) -> None:
        abandoned, next_look = AbandonedStubs(), time.monotonic() + _LOOK_SECONDS
        while True:
            code = running.process.poll()
            if code is not None:
                raise self._failure(f"tritonserver ended with code {code}")
            missing = not_ready(_HOST, running.ports, self.names, openai=self.openai)
            if not missing:
                return
            if time.monotonic() > self.deadline:
                raise self._failure(f"not ready in time: {', '.join(missing)}")
            if time.monotonic() >= next_look:
                next_look += _LOOK_SECONDS
                models = abandoned.kill(running.pid, stubs(running.pid))
                if models:
                    raise self._failure(f"{_ABANDONED}: {', '.join(models)}")
            time.sleep(_POLL_SECONDS)

    def _failure(self, message: str) -> ServerFailedError:
        watcher = LoadWatcher()
        with self.log_path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                watcher.feed(line.rstrip("\n"))
        reason = watcher.reason()
        cause = f": {reason}" if reason else ""
        return ServerFailedError(f"{message}{cause}\n{tail(self.log_path)}")


def copy_models(source: Path, target: Path, *, tokenizers: bool = False) -> None:
    """Copy this project's models to a separate repository, without engines, and without further ones.

    Args:
        source: a model repository.
        target: folder to create; it must not exist.
        tokenizers: copy them, too.
    """
    left_out = [MANIFEST_NAME, "checkpoint", "tokenizer_*", "__pycache__", ".*-*"]
    ignored = shutil.ignore_patterns(*left_out, *(() if tokenizers else ("tokenizer",)))
    for model in MODELS:
        shutil.copytree(source / model, target / model, ignore=ignored)
