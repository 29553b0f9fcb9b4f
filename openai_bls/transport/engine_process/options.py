"""Options of an engine's process, as `openai-bls engine` and the process itself read them."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path

from openai_bls.core import settings
from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.settings import ENV_PREFIX, EngineSettings, SettingsError
from openai_bls.transport.engine_process import address
from openai_bls.transport.engine_process.address import EngineAddress

# Settings of Triton's side, which say how it reaches this process.
_OF_THE_OTHER_SIDE = {name for name in EngineSettings.__struct_fields__ if name.startswith("engine_")}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options to a parser."""
    parser.add_argument(
        "--model-dir",
        type=Path,
        metavar="FOLDER",
        help="the engine's folder, which holds engine.json: <model repository>/tensorrt_llm/1",
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--socket", metavar="PATH", help="listen on this Unix socket")
    place.add_argument(
        "--headless",
        action="store_true",
        help="run the workers of a machine that is not the first, of an engine over several (--option node_rank=1)",
    )
    parser.add_argument(
        "--status",
        action="store_true",
        help="ask the engine's process that listens there how it is: exit status 0 if its engine is ready",
    )
    parser.add_argument(
        "--socket-mode", type=_mode, default=0o600, metavar="MODE", help="permissions of the socket, 600 or 660 (600)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=VALUE",
        help="a setting of tensorrt_llm, as in its config.pbtxt (OPENAI_BLS_<NAME>)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=VALUE",
        help="an option of the engine (OPENAI_BLS_ENGINE_<NAME>)",
    )
    parser.add_argument(
        "--engine-python",
        default="",
        metavar="PYTHON",
        help=f"interpreter of the engine: a path or a command on PATH ({ENV_PREFIX}ENGINE_PYTHON); this one by default",
    )
    # Number of restarts so far, of a process that Triton's side has started.
    parser.add_argument("--supervised", type=int, metavar="RESTARTS", help=SUPPRESS)


def listen_address(options: Namespace) -> EngineAddress:
    """Address to listen on.

    Raises:
        EngineLoadError: that is no address.
    """
    if options.headless:
        raise EngineLoadError("a machine that is not the first listens nowhere: leave out --status or --headless")
    path = options.socket if options.socket.startswith("@") else str(Path(options.socket).absolute())
    return address.parse(f"unix:{path}")


def engine_settings(options: Namespace, environ: Mapping[str, str]) -> tuple[EngineSettings, dict[str, str]]:
    """Settings of the model and options of the engine: of the command line, and those of the environment over them.

    Raises:
        SettingsError: an unknown name or a bad value.
    """
    given = dict(options.set)
    if wrong := _OF_THE_OTHER_SIDE.intersection(given):
        raise SettingsError(f"{min(wrong)} is a setting of Triton's side, not of the engine's process")
    found = settings.load(EngineSettings, given, environ)
    return found, dict(options.option) | settings.engine_overrides(environ)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _mode(text: str) -> int:
    if text not in ("600", "660", "0600", "0660"):
        raise ArgumentTypeError(f"{text!r} is neither 600 nor 660")
    return int(text, 8)
