"""The command line: `python -m openai_bls serve | install-server | doctor | render`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from openai_bls import __version__
from openai_bls.config_pbtxt import write_repository
from openai_bls.launch.checks import PORT_SETTINGS
from openai_bls.launch.console import Console, fail
from openai_bls.launch.doctor import doctor
from openai_bls.launch.errors import LaunchError
from openai_bls.launch.ports import Ports
from openai_bls.launch.process import DEFAULT_EXIT_TIMEOUT_SECONDS
from openai_bls.launch.serve import ServeOptions, serve
from openai_bls.launch.server import NGC_SERVER, install_shim, is_executable

_REPOSITORY_VARIABLE = "OPENAI_BLS_MODEL_REPOSITORY"
_HOST_VARIABLE = "OPENAI_BLS_HTTP_HOST"


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="python -m openai_bls",
        description="Serve the OpenAI API from an NVIDIA Triton model repository.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"openai_bls {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    where = _place_options()
    run = commands.add_parser(
        "serve",
        parents=[where],
        allow_abbrev=False,
        help="start tritonserver and stay in the foreground",
        description="Start tritonserver, wait until every model is ready, print examples."
        " Ctrl-C finishes running requests and stops; a second one kills.",
        epilog="Flags after -- go to tritonserver as they are: serve -- --log-verbose=1",
    )
    run.add_argument(
        "--log-file",
        type=Path,
        metavar="FILE",
        help="keep tritonserver's log here (default: a temporary file, kept after a failure)",
    )
    run.add_argument(
        "--exit-timeout",
        type=int,
        default=DEFAULT_EXIT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="how long a stop waits for running requests (default: %(default)s)",
    )
    run.add_argument("--verbose", action="store_true", help="show the whole log, not only warnings")
    commands.add_parser(
        "install-server",
        help="put a `tritonserver` command into this environment",
        description="Assemble the server of the nvidia-pytriton wheel and write a `tritonserver`"
        " command into this environment's bin folder. Does nothing in an NGC image.",
    )
    commands.add_parser(
        "doctor",
        parents=[where],
        allow_abbrev=False,
        help="run every check and print what is found",
    )
    render = commands.add_parser(
        "render",
        help="write every config.pbtxt anew from openai_bls/tensors.py",
    )
    render.add_argument("--model-repository", type=Path, default=Path("model_repository"), metavar="FOLDER")
    return parser


def _place_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--model-repository",
        type=Path,
        default=Path(os.environ.get(_REPOSITORY_VARIABLE, "model_repository")),
        metavar="FOLDER",
        help=f"the model repository (default: ./model_repository; {_REPOSITORY_VARIABLE})",
    )
    options.add_argument(
        "--host",
        default=os.environ.get(_HOST_VARIABLE, "127.0.0.1"),
        help="the address all ports are bound to, 0.0.0.0 for every network interface"
        f" (default: 127.0.0.1; {_HOST_VARIABLE})",
    )
    defaults = Ports()
    for name, (label, flag, variable) in PORT_SETTINGS.items():
        default = getattr(defaults, name)
        off = ", 0 turns it off" if name == "openai" else ""
        options.add_argument(
            flag,
            # A string default is converted as the argument would be, so a bad variable is reported.
            default=os.environ.get(variable, str(default)),
            type=int,
            metavar="PORT",
            help=f"{label} port (default: {default}{off}; {variable})",
        )
    return options


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    extra: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, extra = arguments[:cut], arguments[cut + 1 :]
    options = build_parser().parse_args(arguments)
    try:
        if options.command == "install-server":
            return _install_server()
        if options.command == "render":
            return _render(options.model_repository)
        ports = Ports(options.http_port, options.grpc_port, options.metrics_port, options.openai_port)
        if options.command == "doctor":
            return doctor(Console(), options.model_repository, ports, options.host)
        return serve(
            ServeOptions(
                repository=options.model_repository,
                ports=ports,
                host=options.host,
                log_file=options.log_file,
                exit_timeout=options.exit_timeout,
                verbose=options.verbose,
                extra=extra,
            )
        )
    except LaunchError as error:
        fail(str(error))
        return 2


def _install_server() -> int:
    if is_executable(NGC_SERVER):
        Console().line(f"this image has its own server at {NGC_SERVER}; nothing to install")
    else:
        Console().line(f"tritonserver command: {install_shim()}")
    return 0


def _render(repository: Path) -> int:
    if not repository.is_dir():
        raise LaunchError(f"there is no model repository at {repository}")
    for path in write_repository(repository):
        Console().line(f"rendered {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
