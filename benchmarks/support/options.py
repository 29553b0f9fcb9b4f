"""Values of command-line options that several benchmarks take."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def levels(text: str) -> tuple[int, ...]:
    """Concurrencies, with commas between."""
    return tuple(positive(part) for part in text.split(","))


def recorded_command(program: Sequence[str], arguments: Sequence[str] | None, left_out: Sequence[str]) -> str:
    """The command to repeat a run of `program`, without the options `left_out`, which name folders."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in left_out:
        parser.add_argument(option)
    _, kept = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    return shlex.join(["python", "-m", *program, *kept])
