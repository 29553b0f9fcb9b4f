"""Command `prepare`: a model repository of this release, without an engine or around the one that is there."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from openai_bls.commands.options import add_repository, repository
from openai_bls.launcher import workspace
from openai_bls.launcher.console import Console


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Make a model repository, or bring the code of its models up to this release. Engines stay, and so do the"
        " values in config.pbtxt files, which are rendered again only if an older release wrote them."
    )
    parser.epilog = "Example: openai-bls prepare --model-repository /srv/models"
    add_repository(parser)


def run(options: Namespace) -> int:
    """Write what is missing or of another release."""
    folder = repository(options)
    workspace.update(folder, Console().line, replace_edited=True)
    Console().line(f"{folder} has the models of this release")
    return 0
