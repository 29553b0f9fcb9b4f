"""Effort of the reasoning as chat templates know it: by a level, by a switch, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openai_bls.core.errors import InvalidRequestError
from openai_bls.output.detect import SWITCHES, thinking_variables
from openai_bls.output.harmony import is_harmony

LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of all APIs, the least first."""
_HARMONY_LEVELS = ("low", "medium", "high")
_EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
"""Names that chat templates have for a level."""
_NO_THINK = "no_think"
"""Level of Hy3 without thinking, which is the default there."""


def effort_variables(
    effort: str | None, templates: Sequence[str], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Variables of a chat template for an effort, which is a hint: what a template does not know is left out.

    Args:
        effort: effort of the request; None says nothing.
        templates: texts of the model's chat templates, or of the request's.
        given: variables of the request; of `SWITCHES` among them the templates' own switches are made.

    Raises:
        InvalidRequestError: it is no level of any API, and none that a template has.
    """
    if effort is not None and effort not in LEVELS and not _knows(templates, effort):
        raise InvalidRequestError(
            f"'reasoning_effort' is none of {', '.join(LEVELS)}.", param="reasoning_effort", code="invalid_value"
        )
    on = effort != "none" if effort is not None else _switch(given or {})
    if on is None:
        return {}
    if any(map(is_harmony, templates)):
        return {} if effort is None else {"reasoning_effort": _nearest(effort, _HARMONY_LEVELS)}
    names = {name for text in templates for name in thinking_variables(text)}
    found: dict[str, Any] = {} if effort is None else {name: on for name in SWITCHES if name in names}
    if effort == "none" and "thinking_budget" in names:
        found["thinking_budget"] = 0
    if "thinking_mode" in names and _knows(templates, "enabled", "disabled"):
        found["thinking_mode"] = "enabled" if on else "disabled"
    if "reasoning" in names:
        found["reasoning"] = on
    switched = bool(found) or not names.isdisjoint(SWITCHES)
    for name in names.intersection(_EFFORTS):
        if (level := _level(effort, templates, switched=switched, on=on)) is not None:
            found[name] = level
    return found


def _switch(given: Mapping[str, Any]) -> bool | None:
    return next((value for name in SWITCHES if isinstance(value := given.get(name), bool)), None)


def _level(effort: str | None, templates: Sequence[str], *, switched: bool, on: bool) -> str | None:
    """The level that a template has for an effort, or for thinking as such; None leaves it to the template.

    Args:
        effort: effort of the request.
        templates: texts of the chat templates.
        switched: a switch says whether to think.
        on: whether to think.
    """
    if not on and _knows(templates, _NO_THINK):
        return _NO_THINK
    if on:
        if effort is None:
            return "high" if _knows(templates, _NO_THINK) else None
        return _nearest(effort, _known(LEVELS[1:], templates) or LEVELS)
    known = _known(LEVELS, templates)
    if (switched and "none" not in known) or (effort is None and not known):
        return None
    return _nearest("none", known or LEVELS)


def _known(levels: Iterable[str], templates: Sequence[str]) -> tuple[str, ...]:
    return tuple(level for level in levels if _knows(templates, level))


def _knows(templates: Sequence[str], *words: str) -> bool:
    """True if templates have all of these words as strings."""
    return all(any(f"'{word}'" in text or f'"{word}"' in text for text in templates) for word in words)


def _nearest(effort: str, known: Sequence[str]) -> str:
    """The level of a template that is nearest to an effort, the lesser of two; one of a template's own stays."""
    if effort not in LEVELS:
        return effort
    place = LEVELS.index(effort)
    return min(known, key=lambda level: abs(LEVELS.index(level) - place))
