"""Command line of the smoke test."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import msgspec

from openai_bls.launcher.checks import check_engine, check_repository
from openai_bls.launcher.console import Console, fail
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.smoke import openai_checks, registry_checks, triton_checks
from openai_bls.launcher.smoke.check import Outcome, Status, run
from openai_bls.launcher.smoke.session import Session, Target
from openai_bls.launcher.testing import run_server

CHECKS = (*openai_checks.CHECKS, *triton_checks.CHECKS, *registry_checks.CHECKS)

_DESCRIPTION = """\
Check every endpoint of a server: one it starts for a model repository and stops again, or one that runs.

    python build/smoke.py
    python build/smoke.py --url http://host:9000/v1 --triton-url http://host:8000 --grpc-url host:8001

One line per check: ok, not supported (the engine does not do it and says so by name), not checked (and what it needs),
or FAILED and why. The exit status is 0 if nothing failed, 1 if something did, 2 if there was nothing to check.
"""


def build_parser(repository: Path) -> argparse.ArgumentParser:
    """The parser; `repository` is the default one to serve."""
    parser = argparse.ArgumentParser(
        prog="build/smoke.py",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    start = parser.add_argument_group("a server of its own, on free ports of 127.0.0.1")
    start.add_argument("--model-repository", type=Path, default=repository, metavar="FOLDER")
    start.add_argument("--log-file", type=Path, metavar="FILE", help="keep the server's log here")
    start.add_argument(
        "--start-timeout", type=float, default=1800.0, metavar="SECONDS", help="for loading (default: %(default)s)"
    )
    running = parser.add_argument_group("a server that runs")
    running.add_argument("--url", type=_openai_url, help="of /v1, such as http://host:9000/v1; nothing is started then")
    running.add_argument("--triton-url", type=_http_url, help="Triton's HTTP port, such as http://host:8000")
    running.add_argument("--grpc-url", type=_host_and_port, help="Triton's gRPC port, such as host:8001")
    running.add_argument("--metrics-url", type=_http_url, help="Triton's metrics, such as http://host:8002/metrics")
    parser.add_argument("--model", help="the served name to ask for (default: the first of /v1/models)")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for each answer (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    return parser


def main(repository: Path, argv: list[str] | None = None) -> int:
    """Run the checks and return the exit status. The API key is read from OPENAI_BLS_API_KEY."""
    parser = build_parser(repository)
    options = parser.parse_args(argv)
    if options.url is None and (options.triton_url or options.grpc_url or options.metrics_url):
        parser.error("--triton-url, --grpc-url and --metrics-url are of a running server: give its --url too")
    try:
        with _target(options) as target:
            return report(target, as_json=options.json)
    except LaunchError as error:
        fail(str(error))
        return 2


def report(target: Target, *, as_json: bool) -> int:
    """Make all checks, print what was found, and return the exit status."""
    console = Console()
    outcomes: list[Outcome] = []
    for outcome in run(CHECKS, Session(target)):
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
def _target(options: argparse.Namespace) -> Iterator[Target]:
    asked = (os.environ.get("OPENAI_BLS_API_KEY", ""), options.model, options.timeout)
    if options.url is not None:
        yield Target(options.url, options.triton_url, options.grpc_url, options.metrics_url, *asked)
        return
    repository = options.model_repository.absolute()
    check_repository(repository)
    check_engine(repository)
    if not options.json:
        Console().line(f"starting a server for {options.model_repository}")
    with run_server(repository, log_path=options.log_file, timeout=options.start_timeout, auto_complete=True) as server:
        yield Target(server.openai_url, server.http_url, server.grpc_url, server.metrics_url, *asked)


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as http://host:8000")
    return text.rstrip("/")


def _openai_url(text: str) -> str:
    url = _http_url(text)
    if not url.endswith("/v1"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in /v1")
    return url


def _host_and_port(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not host or not colon or "/" in text or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a host and a port such as host:8001")
    return text
