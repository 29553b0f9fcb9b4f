"""Hints about the reasoning: OpenAI's effort, and the switches and budgets of other servers, as one.

A hint never turns a request away: a chat template takes of it what it knows. `none` and a budget of 0 turn thinking
off, any other effort and budget turn it on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from openai_bls.api.chat import schema
from openai_bls.output.detect import SWITCHES


class ThinkingHints(NamedTuple):
    """Fields of a request about the reasoning."""

    effort: str | None
    """Effort, for templates that have levels."""
    variables: dict[str, Any]
    """Variables of the chat template."""
    params: tuple[str, ...]
    """Fields that say so; without effect for a model that takes none of them."""


def switched(on: bool, budget: int | None = None) -> dict[str, Any]:
    """Variables of a chat template that turn thinking on, with a budget in tokens, or off."""
    variables: dict[str, Any] = dict.fromkeys(SWITCHES, on)
    if not on:
        return {**variables, "thinking_budget": 0}
    return variables if budget is None else {**variables, "thinking_budget": budget}


def thinking_hints(request: schema.ChatCompletionRequest) -> ThinkingHints:
    """The hints of a request; of several that contradict each other the last one in this order counts."""
    effort = request.reasoning_effort
    variables: dict[str, Any] = {}
    params = [] if effort is None else ["reasoning_effort"]
    on: bool | None
    for name, on, budget, level in (
        ("thinking_token_budget", *_budget(request.thinking_token_budget), None),
        ("enable_thinking", request.enable_thinking, None, None),
        ("thinking", *_thinking(request.thinking), None),
        ("think", *_think(request.think)),
        ("reasoning", *_reasoning(request.reasoning)),
    ):
        if getattr(request, name) is None:
            continue
        params.append(name)
        if level is not None:
            effort = effort or level
        if on is not None:
            variables |= switched(on, budget)
    return ThinkingHints(effort, variables, tuple(params))


def _budget(tokens: int | None) -> tuple[bool | None, int | None]:
    return (None, None) if tokens is None else (tokens > 0, tokens)


def _thinking(switch: schema.ThinkingSwitch | bool | None) -> tuple[bool | None, int | None]:
    if not isinstance(switch, schema.ThinkingSwitch):
        return switch, None
    if switch.type in ("auto", "adaptive"):
        # The model decides, as it does without the field.
        return None, None
    return switch.type == "enabled", switch.budget_tokens


def _think(value: bool | str | None) -> tuple[bool | None, int | None, str | None]:
    return (None, None, value) if isinstance(value, str) else (value, None, None)


def _reasoning(options: schema.ReasoningOptions | None) -> tuple[bool | None, int | None, str | None]:
    if options is None:
        return None, None, None
    on, budget = _budget(options.max_tokens)
    return options.enabled if on is None else on, budget, options.effort
