"""Nearest name to one that does not exist: of commands, options, settings, files, models and engines' fields alike."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

_LEAST_RATIO = 0.74
"""Similarity of two names, as difflib's `ratio`, from which on one may be meant: 0.8 is one letter of five."""


def nearest(name: str, known: Collection[str]) -> str:
    """The name that was probably meant; empty if none is near.

    One of the same letters is meant before others (`modle`: `model`, not `mode`).
    """
    near = get_close_matches(name, [one for one in known if one != name], cutoff=_LEAST_RATIO)
    return next((one for one in near if sorted(one) == sorted(name)), near[0] if near else "")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Question that names the nearest; empty if none is near."""
    near = nearest(name, known)
    return f"did you mean {near}?" if near else ""


def meant_or_known(name: str, known: Collection[str]) -> str:
    """End of a sentence about a name that does not exist: the nearest, or all of them."""
    return did_you_mean(name, known) or f"known are {', '.join(known) or 'none'}"
