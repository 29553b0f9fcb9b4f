"""Command `doctor`: the machine, the environment and the model repository, checked."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from openai_bls.commands.options import add_place, address, repository
from openai_bls.launcher.console import Console
from openai_bls.launcher.doctor import doctor, examine


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = "Run every check and print what is found. The exit status is 1 if something would not work."
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def run(options: Namespace) -> int:
    """Make the checks."""
    host, ports = address(options)
    report = examine(repository(options), ports, host, options.triton_host)
    return doctor(Console(), report, as_json=options.json)
