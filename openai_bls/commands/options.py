"""Options that several commands share: the model repository, addresses and ports."""

from __future__ import annotations

import functools
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from openai_bls.core.settings import OpenAiBlsSettings, SettingsError
from openai_bls.launcher.checks import OPENAI_MODEL, PORT_SETTINGS
from openai_bls.launcher.tritonserver.ports import Ports
from openai_bls.launcher.variables import TRITON_HOST_VARIABLE
from openai_bls.launcher.workspace import REPOSITORY_VARIABLE, default_repository
from openai_bls.triton_models.repository.engines import openai_bls_settings

_HOST_VARIABLE = "OPENAI_BLS_HTTP_HOST"

REPOSITORY_HELP = (
    "the model repository (default: ./model_repository where there is one, else"
    f" ~/.local/share/openai_bls/model_repository; {REPOSITORY_VARIABLE})"
)


def add_repository(parser: ArgumentParser) -> None:
    """Add --model-repository; `repository` reads it."""
    parser.add_argument("--model-repository", type=Path, metavar="FOLDER", help=REPOSITORY_HELP)


def repository(options: Namespace) -> Path:
    """The model repository of a command line, which may name none."""
    named: Path | None = getattr(options, "model_repository", None)
    return default_repository(os.environ) if named is None else named


def add_place(parser: ArgumentParser) -> None:
    """Add --model-repository, and the addresses and ports of a server; `address` reads these."""
    add_repository(parser)
    parser.add_argument(
        "--host",
        default=os.environ.get(_HOST_VARIABLE),
        help="the address all ports are bound to, 0.0.0.0 for every network interface"
        f" (default: http_host in openai_bls/config.pbtxt, 127.0.0.1; {_HOST_VARIABLE})",
    )
    parser.add_argument(
        "--triton-host",
        default=os.environ.get(TRITON_HOST_VARIABLE, ""),
        metavar="HOST",
        help="the address of Triton's own ports, 127.0.0.1 to open /v1 alone"
        f" (default: that of --host; {TRITON_HOST_VARIABLE})",
    )
    defaults = Ports()
    for name, (label, flag, variable) in PORT_SETTINGS.items():
        default = str(getattr(defaults, name))
        said = f"http_port in openai_bls/config.pbtxt, {default}, 0 turns it off" if name == "openai" else default
        parser.add_argument(
            flag,
            # A string default is converted as the argument would be, so a bad variable is reported.
            default=os.environ.get(variable, None if name == "openai" else default),
            type=functools.partial(_port, variable),
            metavar="PORT",
            help=f"{label} port (default: {said}; {variable})",
        )


def address(options: Namespace) -> tuple[str, Ports]:
    """Host and ports: as given, those of /v1 else as openai_bls's config.pbtxt has them."""
    try:
        known = openai_bls_settings(repository(options) / OPENAI_MODEL, {})
    except (OSError, ValueError, SettingsError):
        # The server itself says what is wrong with it.
        known = OpenAiBlsSettings()
    host = known.http_host if options.host is None else options.host
    openai_port = known.http_port if options.openai_port is None else options.openai_port
    return host, Ports(options.http_port, options.grpc_port, options.metrics_port, openai_port)


def _port(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        place = f" ({variable})" if os.environ.get(variable) == text else ""
        raise ArgumentTypeError(f"{text!r}{place} is no port: it is a whole number up to 65535") from None


def count(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    """Names with commas between."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ArgumentTypeError(f"{text!r} is not a list of names with commas between")
    return found
