"""Smoke test: every check against one server, and what is printed of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import ssl
from collections.abc import Iterator
from typing import get_args

import msgspec

from openai_bls.launcher.checks import check_engine, check_repository
from openai_bls.launcher.console import Console
from openai_bls.launcher.smoke import openai_checks, registry_checks, triton_checks
from openai_bls.launcher.smoke.check import Outcome, Status
from openai_bls.launcher.smoke.check import run as run_checks
from openai_bls.launcher.smoke.session import Session, Target
from openai_bls.launcher.testing import run_server
from openai_bls.launcher.workspace import default_repository

CHECKS = (*openai_checks.CHECKS, *triton_checks.CHECKS, *registry_checks.CHECKS)


def run(options: argparse.Namespace, api_key: str = "", tls: ssl.SSLContext | None = None) -> int:
    """Run the checks and return the exit status.

    Args:
        options: command line of `smoke`.
        api_key: key of the server; empty is none.
        tls: verification of https URLs; None is the usual one.
    """
    with _target(options, api_key, tls) as target:
        return report(target, as_json=options.json)


def report(target: Target, *, as_json: bool) -> int:
    """Make all checks, print what was found, and return the exit status."""
    console = Console()
    outcomes: list[Outcome] = []
    for outcome in run_checks(CHECKS, Session(target)):
        outcomes.append(outcome)
        if not as_json:
            console.line(outcome.line())
    statuses = [outcome.status for outcome in outcomes]
    counts = {status: statuses.count(status) for status in get_args(Status)}
    if as_json:
        document = {"checks": outcomes, "summary": counts}
        console.line(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        console.line(f"{len(outcomes)} checks: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts["FAILED"] else 0


@contextlib.contextmanager
def _target(options: argparse.Namespace, api_key: str, tls: ssl.SSLContext | None) -> Iterator[Target]:
    asked = (api_key, options.model, options.timeout, tls)
    if options.url is not None:
        yield Target(options.url, options.triton_url, options.grpc_url, options.metrics_url, *asked)
        return
    repository = (options.model_repository or default_repository(os.environ)).absolute()
    check_repository(repository)
    check_engine(repository)
    if not options.json:
        Console().line(f"starting a server for {repository}")
    with run_server(repository, log_path=options.log_file, timeout=options.start_timeout, auto_complete=True) as server:
        yield Target(server.openai_url, server.http_url, server.grpc_url, server.metrics_url, *asked)
