"""Command `smoke`: every endpoint of a server, asked once."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlsplit

from openai_bls.commands.connection import above_zero, add_certificates, add_key, add_model, add_url, api_key, tls
from openai_bls.commands.options import REPOSITORY_HELP

_DESCRIPTION = """\
Check every endpoint of a server: one it starts for a model repository and stops again, or one that runs.

    openai-bls smoke
    openai-bls smoke --url host:9000 --triton-url http://host:8000 --grpc-url host:8001

One line per check: ok, not supported (the engine does not do it and says so by name), not checked (and what it needs),
or FAILED and why. The exit status is 0 if nothing failed, 1 if something did, 2 if there was nothing to check.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    start = parser.add_argument_group("a server of its own, on free ports of 127.0.0.1")
    start.add_argument("--model-repository", type=Path, metavar="FOLDER", help=REPOSITORY_HELP)
    start.add_argument("--log-file", type=Path, metavar="FILE", help="keep the server's log here")
    start.add_argument(
        "--start-timeout", type=above_zero, default=1800.0, metavar="SECONDS", help="for loading (default: %(default)s)"
    )
    running = parser.add_argument_group("a server that runs")
    add_url(running, default=None)
    running.add_argument("--triton-url", type=_http_url, help="Triton's HTTP port, such as http://host:8000")
    running.add_argument("--grpc-url", type=_host_and_port, help="Triton's gRPC port, such as host:8001")
    running.add_argument("--metrics-url", type=_http_url, help="Triton's metrics, such as http://host:8002/metrics")
    add_model(parser)
    add_key(parser)
    parser.add_argument(
        "--timeout", type=above_zero, default=120.0, metavar="SECONDS", help="for each answer (default: %(default)s)"
    )
    add_certificates(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def run(options: argparse.Namespace) -> int:
    """Run the checks and return the exit status."""
    if options.url is None and (options.triton_url or options.grpc_url or options.metrics_url):
        options.parser.error("--triton-url, --grpc-url and --metrics-url are of a running server: give its --url too")
    # Here, since it needs the openai package, which help and completion do not.
    from openai_bls.launcher.smoke.command import run as run_checks

    return run_checks(options, api_key(options), tls(options))


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as http://host:8000")
    return text.rstrip("/")


def _host_and_port(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not host or not colon or "/" in text or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a host and a port such as host:8001")
    return text
