"""Findings of a check of the plan: sentences for the operator."""

from __future__ import annotations

import msgspec


class Findings(msgspec.Struct, frozen=True):
    """Sentences of one check."""

    problems: tuple[str, ...] = ()
    """Reasons why the plan cannot work; --force tries it all the same."""
    refusals: tuple[str, ...] = ()
    """Problems of the options alone, which --force does not change."""
    notes: tuple[str, ...] = ()
