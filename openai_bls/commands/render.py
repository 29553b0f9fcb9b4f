"""Command `render`: every config.pbtxt of a repository, rewritten."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from openai_bls.commands.options import add_repository, repository
from openai_bls.core.settings import SettingsError
from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Rewrite every config.pbtxt of the repository from this release's tables, with the values that are in it and"
        " those given. What it does not know, there or here, is refused, and then nothing is written."
    )
    parser.epilog = "Example: openai-bls render --set openai_bls.instances=2 --set openai_bls.http_port=9100"
    add_repository(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="MODEL.NAME=VALUE",
        help="a parameter of a model, or its instances, max_batch_size, max_queue_delay_microseconds or max_queue_size;"
        " may be given several times; an empty VALUE takes a parameter out",
    )


def run(options: Namespace) -> int:
    """Write the files."""
    # Here, since protobuf and gRPC are heavy.
    from openai_bls.triton_models.repository.render_configs import configure

    folder = repository(options)
    if not folder.is_dir():
        raise LaunchError(f"there is no model repository at {folder}")
    try:
        changed = configure(folder, options.changes)
    except SettingsError as error:
        raise LaunchError(str(error)) from None
    for path in changed:
        Console().line(f"rendered {path}")
    return 0
