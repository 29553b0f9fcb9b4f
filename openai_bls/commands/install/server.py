"""Command `install-server`: a `tritonserver` command for the environment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from openai_bls.launcher.console import Console
from openai_bls.launcher.tritonserver.command import NGC_SERVER, install_shim, is_executable


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's description; it has no options."""
    parser.description = (
        "Assemble the server of the nvidia-pytriton wheel and write a `tritonserver` command into this environment's"
        " bin folder. Does nothing in an NGC image."
    )


def run(_options: Namespace) -> int:
    """Write the command."""
    if is_executable(NGC_SERVER):
        Console().line(f"this image has its own server at {NGC_SERVER}; nothing to install")
    else:
        Console().line(f"tritonserver command: {install_shim()}")
    return 0
