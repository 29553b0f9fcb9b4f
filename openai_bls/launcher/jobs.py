"""Servers of several ranks: options of `serve` about them, and jobs that start them, by the plug-ins of engines."""

from __future__ import annotations

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines import registry
from openai_bls.launcher.checks import engine_models
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.readiness import expected_models
from openai_bls.launcher.tritonserver.job import Job


@dataclass(frozen=True)
class JobRequest:
    """Start of a server that may need a job."""

    repository: Path
    extra: Sequence[str]
    """Flags of tritonserver that the user gave."""
    environment: dict[str, str]
    """Environment variables of the server."""

    @functools.cached_property
    def engines(self) -> list[str]:
        """Models that hold an engine, among those that the server loads."""
        return engine_models(expected_models(self.repository, self.extra))


class JobPlan(NamedTuple):
    """Job of a server, and the environment that it needs."""

    job: Job | None
    """None: one plain tritonserver is right."""
    environment: dict[str, str]


class ServerJobs(Protocol):
    """Part of an engine's plug-in for servers of several ranks. Each method raises `LaunchError` for a misfit."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add options of `serve`."""

    def plan(self, options: Namespace, request: JobRequest) -> JobPlan:
        """Job of a server, by the values of the options."""

    def run(self, options: Namespace, request: JobRequest) -> int | None:
        """Run the whole command `serve` as a job; its exit status, or None where no job was asked for.

        Args:
            options: options of `serve`; `dry_run` only prints the job.
            request: the start that `serve` would make.
        """


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options about jobs of all engines."""
    for part in _parts():
        part.add_arguments(parser)


def defaults() -> Namespace:
    """Options about jobs as an empty command line gives them."""
    parser = ArgumentParser(add_help=False)
    add_arguments(parser)
    return parser.parse_args([])


def chosen(options: Namespace) -> Namespace:
    """Options about jobs among the options of `serve`."""
    return Namespace(**{name: getattr(options, name) for name in vars(defaults())})


def plan(options: Namespace, request: JobRequest) -> JobPlan:
    """Job of a server: the first that an engine's plug-in has for it.

    Args:
        options: options about jobs.
        request: start of the server.

    Raises:
        LaunchError: the options do not fit the engines or each other, or a program is missing.
    """
    for part in _parts():
        found = part.plan(options, request)
        if found.job is not None:
            return found
        request = replace(request, environment=found.environment)
    return JobPlan(None, request.environment)


def run(options: Namespace, request: JobRequest) -> int | None:
    """Run the whole command `serve` as a job; its exit status, or None where no job was asked for."""
    statuses = (part.run(options, request) for part in _parts())
    return next((status for status in statuses if status is not None), None)


def _parts() -> list[ServerJobs]:
    try:
        found = [one.jobs() for one in registry.plugins() if one.jobs is not None]
    except EngineLoadError as error:
        raise LaunchError(str(error)) from None
    return cast("list[ServerJobs]", found)
