"""Values of command-line options that several benchmarks take."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def levels(text: str) -> tuple[int, ...]:
    """Concurrencies, with commas between."""
    return tuple(positive(part) for part in text.split(","))
