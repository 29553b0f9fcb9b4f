"""Command `install-engine`: an environment for an engine whose packages are not Triton's Python's."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from openai_bls.builder.engine_environment import InstallOptions, engine_environments
from openai_bls.commands.options import add_repository, repository
from openai_bls.core.machine.nvidia_smi import visible_gpus
from openai_bls.core.manifest import EngineSetupError
from openai_bls.launcher.console import Console
from openai_bls.launcher.errors import LaunchError

_DESCRIPTION = (
    "Make an environment with the packages of an engine. Run again it does what is left to do. pip's own variables hold"
    " (PIP_INDEX_URL, PIP_NO_CACHE_DIR, ...)."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    known = engine_environments()
    parser.description = " ".join([_DESCRIPTION, *(f"{name}: {made.description}." for name, made in known.items())])
    parser.add_argument("engine", choices=tuple(known), help="the engine")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="FOLDER",
        help="the environment (default: beside the model repository, where a build looks for it)",
    )
    add_repository(parser)
    parser.add_argument(
        "--version", default="", metavar="X", help="version of its package (default: the one that is tested)"
    )
    parser.add_argument("--cpu", action="store_true", help="the build for CPUs, though there is a GPU")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be installed, in which versions, and install nothing"
    )
    parser.add_argument("--python", metavar="PYTHON", help="interpreter to make it with, 3.11 or later (default: this)")
    parser.add_argument(
        "--torch-index-url",
        default="",
        metavar="URL",
        help="PyTorch's index of builds for CPUs, gigabytes smaller than those that pip's own index may have",
    )


def run(options: Namespace) -> int:
    """Make the environment."""
    import sys

    made = engine_environments()[options.engine]
    wanted = InstallOptions(
        folder=made.default_folder()(repository(options)) if options.dir is None else options.dir,
        device="cpu" if options.cpu or not visible_gpus() else "gpu",
        version=options.version,
        python=options.python or sys.executable,
        dry_run=options.dry_run,
        torch_index_url=options.torch_index_url,
    )
    try:
        made.install()(wanted, Console().step)
    except EngineSetupError as error:
        raise LaunchError(str(error)) from None
    return 0
