"""Command `completion`: a script that completes `openai-bls` in a shell."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

import shtab

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Print a script that completes commands, options and their values. Where it belongs: bash"
        " ~/.local/share/bash-completion/completions/openai-bls, zsh a file _openai-bls in a folder of $fpath, fish"
        " ~/.config/fish/completions/openai-bls.fish."
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(options: Namespace) -> int:
    """Print the script."""
    # Here, since `main` imports the table that names this module.
    from openai_bls.commands.main import build_parser

    parser = build_parser(complete=True)
    # The script is static: nothing of ours runs when a key is pressed.
    sys.stdout.write(shtab.complete(parser, options.shell) + "\n")
    return 0
