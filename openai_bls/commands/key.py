"""Command `key`: an API key, and its line for the file of keys."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from openai_bls.core.keys.api_keys import ApiKeysError, new_key
from openai_bls.launcher.errors import LaunchError


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Make a random API key. Its line for the file of keys (OPENAI_BLS_API_KEYS_FILE), with the hash in the place of"
        " the key, goes to standard output, and the key itself to standard error: key NAME >> FILE."
    )
    parser.add_argument("name", metavar="NAME", help="the client's name, for the metrics and the guards")


def run(options: Namespace) -> int:
    """Print the key and its line."""
    try:
        key, line = new_key(options.name)
    except ApiKeysError as error:
        raise LaunchError(str(error)) from None
    sys.stderr.write(f"{key}\n")
    sys.stdout.write(f"{line}\n")
    return 0
