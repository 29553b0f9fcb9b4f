"""Plan of a start: the server, its command and its environment, from the options of `serve`."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openai_bls.core.settings import ENV_PREFIX
from openai_bls.launcher import checks, jobs
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.readiness import expected_models
from openai_bls.launcher.serving.exposure import without_keys
from openai_bls.launcher.serving.forwarded_headers import forwarded_headers
from openai_bls.launcher.serving.options import ServeOptions
from openai_bls.launcher.tritonserver.command import Server, has_flag, prepare
from openai_bls.launcher.tritonserver.job import Job
from openai_bls.launcher.tritonserver.loading import failure_flags, load_flags
from openai_bls.launcher.tritonserver.process import full_command
from openai_bls.launcher.tritonserver.restrictions import closed_shared_memory, model_control

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        *(f"--{name}-address={options.triton_address}" for name in ("http", "grpc")),
        f"--metrics-address={options.metrics_address}",
        f"--exit-timeout-secs={options.exit_timeout}",
        *options.extra,
    ]


@dataclass(frozen=True)
class Start:
    """Plan of a start: the server, the command of rank 0, its environment, and the job of its ranks."""

    server: Server
    command: Sequence[str]
    environment: Mapping[str, str]
    job: Job | None
    models: Sequence[str] = ()
    """Models that the server loads."""
    keyless: Sequence[str] = ()
    """Models that ask for no API key, whatever the settings."""


def plan(options: ServeOptions) -> Start:
    """Server, command, environment and job of `options`; starts nothing.

    Raises:
        LaunchError: there is no server or no repository, or the options do not fit.
    """
    checks.check_repository(options.repository)
    for path in options.further_repositories:
        checks.check_further_repository(path)
    flags = [*triton_flags(options), *closed_shared_memory(options.extra)]
    flags += forwarded_headers(options.repository, options.extra, {**os.environ, **options.own_environment})
    server, command, environment = prepare(flags)
    environment = {**environment, **options.own_environment}
    environment["OPENAI_BLS_HTTP_HOST"] = options.host
    environment["OPENAI_BLS_HTTP_PORT"] = str(options.ports.openai)
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        if (path := getattr(options, name)) is not None:
            environment[ENV_PREFIX + name.upper()] = str(path.absolute())
    job, environment = jobs.plan(options.jobs, jobs.JobRequest(options.repository, options.extra, environment))
    if options.restarts and job is None:
        command = [*command, *model_control(options.extra)]
    models = expected_models(options.repository, options.extra, options.further_repositories)
    if job is None:
        command = [*command, *load_flags(_folders(options, models), options.extra)]
        command += failure_flags(checks.models_by_engine(models), options.extra)
    return Start(server, command, environment, job, models, without_keys(options.repository, models))


def _folders(options: ServeOptions, models: Sequence[str]) -> list[Path]:
    repositories = (options.repository, *options.further_repositories)
    return [path / name for path in repositories for name in models if (path / name).is_dir()]


def dry_run(start: Start, base: Mapping[str, str]) -> str:
    """A shell script that does what `start` says: the changes to the environment `base`, then the command."""
    lines = [f"unset {name}" for name in sorted(base) if name not in start.environment]
    changed = {name: value for name, value in sorted(start.environment.items()) if base.get(name) != value}
    lines += [f"export {name}={shlex.quote(value)}" for name, value in changed.items()]
    if start.job is not None:
        lines += [f"# {note}" for note in start.job.notes]
    # At a start the prefix also holds the launcher's process id and a random part.
    return "\n".join([*lines, shlex.join(full_command(start.command, "openai_bls_", start.job))])
