"""Command `reload`: models of a running server, unloaded and loaded again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from openai_bls.commands.options import add_place, address
from openai_bls.launcher.console import Console
from openai_bls.launcher.tritonserver.ports import local_host
from openai_bls.triton_models.server.process import control_headers, find_tritonserver


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Unload models of a running server and load them again, over gRPC: model control over HTTP cuts off streams of"
        " other models. The server must have been started by `serve` or with --model-control-mode=explicit."
    )
    parser.epilog = "Example: openai-bls reload openai_bls, or openai-bls reload tensorrt_llm after a build"
    add_place(parser)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a model of the repository, such as tensorrt_llm")


def run(options: Namespace) -> int:
    """Reload the models."""
    # Here, since gRPC is heavy.
    from openai_bls.launcher.recovery.reload import reload_models

    host, ports = address(options)
    server = find_tritonserver(ports.grpc)
    headers = {} if server is None else control_headers(server, "grpc")
    reload_models(f"{local_host(options.triton_host or host)}:{ports.grpc}", options.models, Console().line, headers)
    return 0
