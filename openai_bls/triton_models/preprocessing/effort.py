"""Effort of the reasoning as chat templates know it: by a level, by a switch, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.detect import SWITCHES, thinking_variables
from openai_bls.output.harmony import is_harmony

LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of all APIs, the least first."""
_HARMONY_LEVELS = ("low", "medium", "high")


def effort_variables(effort: str | None, templates: Sequence[str]) -> dict[str, Any]:
    """Variables of a chat template for an effort, which is a hint: what a template does not know is left out.

    Args:
        effort: effort of the request; None says nothing.
        templates: texts of the model's chat templates, or of the request's.

    Raises:
        InvalidRequestError: it is no level of any API, and none that a template has.
    """
    if effort is None:
        return {}
    if effort not in LEVELS and not any(_has_literal(text, effort) for text in templates):
        raise InvalidRequestError(
            f"'reasoning_effort' is none of {', '.join(LEVELS)}.", param="reasoning_effort", code="invalid_value"
        )
    names = {name for text in templates for name in thinking_variables(text)}
    switches = {name: effort != "none" for name in SWITCHES if name in names}
    if any(map(is_harmony, templates)):
        return {"reasoning_effort": _nearest(effort, _HARMONY_LEVELS)}
    if "reasoning_effort" not in names:
        return switches
    known = tuple(level for level in LEVELS if any(_has_literal(text, level) for text in templates))
    if effort == "none" and switches and "none" not in known:
        return switches
    return {"reasoning_effort": _nearest(effort, known or LEVELS), **switches}


def _has_literal(template: str, level: str) -> bool:
    return f"'{level}'" in template or f'"{level}"' in template


def _nearest(effort: str, known: Sequence[str]) -> str:
    """The level of a template that is nearest to an effort, the lesser of two; one of a template's own stays."""
    if effort not in LEVELS:
        return effort
    place = LEVELS.index(effort)
    return min(known, key=lambda level: abs(LEVELS.index(level) - place))
