"""Command line: `python -m openai_bls serve | install-server | doctor | render | reload | key`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

if importlib.util.find_spec("msgspec") is None:
    sys.exit(
        f"python -m openai_bls: {sys.executable} does not have its packages: run `pip install -e .` in the source tree"
    )

from openai_bls import __version__
from openai_bls.core import guide_names
from openai_bls.core.api_keys import ApiKeysError, new_key
from openai_bls.core.settings import OpenAiBlsSettings, SettingsError
from openai_bls.launcher.checks import OPENAI_MODEL, PORT_SETTINGS, doctor
from openai_bls.launcher.console import Console, fail
from openai_bls.launcher.errors import LaunchError
from openai_bls.launcher.ports import Ports, local_host
from openai_bls.launcher.process import DEFAULT_EXIT_TIMEOUT_SECONDS
from openai_bls.launcher.ranks import RankOptions
from openai_bls.launcher.serve import ServeOptions, serve
from openai_bls.launcher.server import NGC_SERVER, install_shim, is_executable
from openai_bls.launcher.supervisor import DEFAULT_RESTARTS
from openai_bls.triton_models.openai_bls.server_process import control_headers, find_tritonserver
from openai_bls.triton_models.repository import openai_bls_settings

_REPOSITORY_VARIABLE = "OPENAI_BLS_MODEL_REPOSITORY"
_HOST_VARIABLE = "OPENAI_BLS_HTTP_HOST"
_TRITON_HOST_VARIABLE = "OPENAI_BLS_TRITON_HOST"


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
    run.set_defaults(subparser=run)
    run.add_argument(
        "--with",
        type=Path,
        action="append",
        default=[],
        dest="further_repositories",
        metavar="FOLDER",
        help="a further model repository, such as examples; may be given several times",
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
    run.add_argument(
        "--restarts",
        type=_count,
        default=DEFAULT_RESTARTS,
        metavar="N",
        help="restarts within 10 minutes of a server that ends, and of each model whose process dies, after which it"
        " stays down; 0 for none, and no model control either (default: %(default)s)",
    )
    _add_rank_options(run)
    run.add_argument(
        "--dry-run", action="store_true", help="print the command and the changes to the environment, start nothing"
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
        allow_abbrev=False,
        help="write every config.pbtxt anew, with the values it has and those given",
        description="Write every config.pbtxt of the repository anew from this release's tables, with the values that"
        " are in it and those given. What it does not know, there or here, is refused, and then nothing is written.",
    )
    _add_repository(render)
    render.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="MODEL.NAME=VALUE",
        help="a parameter of a model, or its instances, max_batch_size, max_queue_delay_microseconds or max_queue_size;"
        " may be given several times; an empty VALUE takes a parameter out",
    )
    again = commands.add_parser(
        "reload",
        parents=[where],
        allow_abbrev=False,
        help="unload models of a running server and load them again",
        description="Unload models of a running server and load them again, over gRPC: model control over HTTP cuts off"
        " streams of other models. The server must have been started by `serve` or with --model-control-mode=explicit.",
    )
    again.add_argument("models", nargs="+", metavar="MODEL", help="a model of the repository, such as tensorrt_llm")
    key = commands.add_parser(
        "key",
        allow_abbrev=False,
        help="make an API key, and its line for the file of keys",
        description="Make a random API key. Its line for the file of keys (OPENAI_BLS_API_KEYS_FILE), with the hash in"
        " the place of the key, goes to standard output, and the key itself to standard error: key NAME >> FILE.",
    )
    key.add_argument("name", metavar="NAME", help="the client's name, for the metrics and the guards")
    return parser


def _add_repository(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--model-repository",
        type=Path,
        default=Path(os.environ.get(_REPOSITORY_VARIABLE, "model_repository")),
        metavar="FOLDER",
        help=f"the model repository (default: ./model_repository; {_REPOSITORY_VARIABLE})",
    )


def _place_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    _add_repository(options)
    options.add_argument(
        "--host",
        default=os.environ.get(_HOST_VARIABLE),
        help="the address all ports are bound to, 0.0.0.0 for every network interface"
        f" (default: http_host in openai_bls/config.pbtxt, 127.0.0.1; {_HOST_VARIABLE})",
    )
    options.add_argument(
        "--triton-host",
        default=os.environ.get(_TRITON_HOST_VARIABLE, ""),
        metavar="HOST",
        help="the address of Triton's own ports, 127.0.0.1 to open /v1 alone"
        f" (default: that of --host; {_TRITON_HOST_VARIABLE})",
    )
    defaults = Ports()
    for name, (label, flag, variable) in PORT_SETTINGS.items():
        default = str(getattr(defaults, name))
        said = f"http_port in openai_bls/config.pbtxt, {default}, 0 turns it off" if name == "openai" else default
        options.add_argument(
            flag,
            # A string default is converted as the argument would be, so a bad variable is reported.
            default=os.environ.get(variable, None if name == "openai" else default),
            type=int,
            metavar="PORT",
            help=f"{label} port (default: {said}; {variable})",
        )
    return options


def _add_rank_options(run: argparse.ArgumentParser) -> None:
    ranks = run.add_argument_group("several GPUs", "For engines of TensorRT-LLM's C++ backend; see docs/serving.md.")
    ranks.add_argument(
        "--world-size",
        "--world_size",
        type=int,
        metavar="N",
        help="tritonservers to start with mpirun, one per GPU (default: what the engine was built for)",
    )
    ranks.add_argument(
        "--mode",
        choices=("leader", "orchestrator"),
        default="leader",
        help="leader: one tritonserver per GPU, on any number of machines. orchestrator: one tritonserver that starts"
        " workers, for several engines on one machine (default: %(default)s)",
    )
    ranks.add_argument(
        "--tensorrt_llm_model_name",
        "--tensorrt-llm-model-name",
        type=_names,
        default=(),
        metavar="NAME[,NAME]",
        help="models that ranks other than 0 load (default: every engine)",
    )
    ranks.add_argument("--hosts", default="", metavar="HOST:GPUS,...", help="machines for mpirun, this one first")
    ranks.add_argument("--hostfile", type=Path, metavar="FILE", help="the same as a file, as mpirun reads it")
    ranks.add_argument(
        "--oversubscribe", action="store_true", help="more ranks than mpirun counts slots, as with SLURM"
    )
    ranks.add_argument(
        "--mpirun-arg",
        action="append",
        default=[],
        metavar="WORD",
        help="one further word for mpirun, such as --mpirun-arg=--tag-output; repeatable",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names with commas between")
    return names


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    extra: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, extra = arguments[:cut], arguments[cut + 1 :]
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        if options.command == "serve":
            guide_names.refuse(options.subparser, unknown, guide_names.SERVE)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        if options.command in _WITHOUT_PORTS:
            return _WITHOUT_PORTS[options.command](options)
        host, openai_port = _v1_address(options)
        ports = Ports(options.http_port, options.grpc_port, options.metrics_port, openai_port)
        if options.command == "reload":
            return _reload(local_host(options.triton_host or host), options.grpc_port, options.models)
        if options.command == "doctor":
            return doctor(Console(), options.model_repository, ports, host, options.triton_host)
        return serve(
            ServeOptions(
                repository=options.model_repository,
                further_repositories=tuple(options.further_repositories),
                ports=ports,
                host=host,
                triton_host=options.triton_host,
                log_file=options.log_file,
                exit_timeout=options.exit_timeout,
                restarts=options.restarts,
                verbose=options.verbose,
                ranks=RankOptions(
                    options.world_size,
                    options.mode,
                    options.tensorrt_llm_model_name,
                    options.hosts,
                    options.hostfile,
                    options.oversubscribe,
                    tuple(options.mpirun_arg),
                ),
                dry_run=options.dry_run,
                extra=extra,
            )
        )
    except LaunchError as error:
        fail(str(error))
        return 2


def _v1_address(options: argparse.Namespace) -> tuple[str, int]:
    """The host and the port of /v1: as given, else as openai_bls's config.pbtxt has them."""
    try:
        known = openai_bls_settings(options.model_repository / OPENAI_MODEL, {})
    except (OSError, ValueError, SettingsError):
        # The server itself says what is wrong with it.
        known = OpenAiBlsSettings()
    host = known.http_host if options.host is None else options.host
    return host, known.http_port if options.openai_port is None else options.openai_port


def _install_server() -> int:
    if is_executable(NGC_SERVER):
        Console().line(f"this image has its own server at {NGC_SERVER}; nothing to install")
    else:
        Console().line(f"tritonserver command: {install_shim()}")
    return 0


def _key(name: str) -> int:
    try:
        key, line = new_key(name)
    except ApiKeysError as error:
        raise LaunchError(str(error)) from None
    sys.stderr.write(f"{key}\n")
    sys.stdout.write(f"{line}\n")
    return 0


def _reload(host: str, port: int, models: list[str]) -> int:
    # Here, since gRPC is heavy.
    from openai_bls.launcher.reload import reload_models

    server = find_tritonserver(port)
    headers = {} if server is None else control_headers(server, "grpc")
    reload_models(f"{host}:{port}", models, Console().line, headers)
    return 0


def _render(repository: Path, changes: list[str]) -> int:
    # Here, since protobuf and gRPC are heavy.
    from openai_bls.triton_models.render_configs import configure

    if not repository.is_dir():
        raise LaunchError(f"there is no model repository at {repository}")
    try:
        changed = configure(repository, changes)
    except SettingsError as error:
        raise LaunchError(str(error)) from None
    for path in changed:
        Console().line(f"rendered {path}")
    return 0


_WITHOUT_PORTS: dict[str, Callable[[argparse.Namespace], int]] = {
    "install-server": lambda options: _install_server(),
    "key": lambda options: _key(options.name),
    "render": lambda options: _render(options.model_repository, options.changes),
}


if __name__ == "__main__":
    sys.exit(main())
