from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.preprocessing.effort import LEVELS, effort_variables

SWITCH = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% endif %}"
DEEPSEEK = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
LOW_OR_HIGH = "{% if reasoning_effort == 'high' %}a{% elif reasoning_effort == 'low' %}b{% endif %}"
HARMONY = "<|start|>assistant <|channel|>analysis<|message|> <|channel|>final<|message|> {{ reasoning_effort }}"
# Of Hy3, MiniMax M3, Cohere2 MoE, Solar Open, Kimi K3 and Muse
NO_THINK = "{% if reasoning_effort not in ['high', 'low', 'no_think'] %}{% endif %}"
MODE = "{% if thinking_mode == 'disabled' %}</mm:think>{% elif thinking_mode == 'enabled' %}<mm:think>{% endif %}"
REASONING = (
    "{% set reasoning = reasoning if reasoning is not undefined else "
    '(false if reasoning_effort is defined and reasoning_effort == "none" else true) %}'
)
MINIMAL = "{% set reasoning_effort = reasoning_effort or 'high' %}{% if reasoning_effort in ['low', 'minimal'] %}"
KIMI = "{% if thinking and thinking_effort not in ['low', 'high', 'max'] %}{% endif %}"
STRENGTH = "{{ reasoning_strength or 'high' }}"
PRINTED = "Effort: {{ reasoning_effort }}"


@pytest.mark.parametrize(
    ("template", "effort", "variables"),
    [
        (SWITCH, "none", {"enable_thinking": False}),
        (SWITCH, "minimal", {"enable_thinking": True}),
        (SWITCH, "high", {"enable_thinking": True}),
        (DEEPSEEK, "none", {"thinking": False}),
        (DEEPSEEK, "medium", {"thinking": True}),
        ("{{ messages }}", "high", {}),
        ("{{ messages }}", "none", {}),
        (LOW_OR_HIGH, "low", {"reasoning_effort": "low"}),
        (LOW_OR_HIGH, "medium", {"reasoning_effort": "low"}),
        (LOW_OR_HIGH, "max", {"reasoning_effort": "high"}),
        (LOW_OR_HIGH, "none", {"reasoning_effort": "low"}),
        (LOW_OR_HIGH + SWITCH, "none", {"enable_thinking": False}),
        (LOW_OR_HIGH + SWITCH, "xhigh", {"reasoning_effort": "high", "enable_thinking": True}),
        (HARMONY, "none", {"reasoning_effort": "low"}),
        (HARMONY, "xhigh", {"reasoning_effort": "high"}),
        (PRINTED, "xhigh", {"reasoning_effort": "xhigh"}),
        ("{% set ns = namespace(enable_thinking=true) %}{% if ns.enable_thinking %}", "none", {}),
        (NO_THINK, "none", {"reasoning_effort": "no_think"}),
        (NO_THINK, "medium", {"reasoning_effort": "low"}),
        (MODE, "none", {"thinking_mode": "disabled"}),
        (MODE, "low", {"thinking_mode": "enabled"}),
        ("{{ thinking_mode }}", "low", {}),
        (REASONING, "none", {"reasoning": False, "reasoning_effort": "none"}),
        (REASONING, "low", {"reasoning": True, "reasoning_effort": "low"}),
        (MINIMAL, "none", {"reasoning_effort": "minimal"}),
        (KIMI, "none", {"thinking": False}),
        (KIMI, "xhigh", {"thinking": True, "thinking_effort": "high"}),
        ("{% if thinking_budget == 0 %}", "none", {"thinking_budget": 0}),
        ("{% if thinking_budget == 0 %}", "low", {}),
        (STRENGTH, "high", {"reasoning_strength": "high"}),
        (PRINTED + "{# 'deep' #}", "deep", {"reasoning_effort": "deep"}),
    ],
)
def test_variables(template: str, effort: str, variables: dict[str, Any]) -> None:
    assert effort_variables(effort, [template]) == variables


@given(
    effort=st.sampled_from(LEVELS), parts=st.lists(st.sampled_from([SWITCH, DEEPSEEK, LOW_OR_HIGH, HARMONY, PRINTED]))
)
def test_no_level_of_any_api_is_refused(effort: str, parts: list[str]) -> None:
    assert not any(value is None for value in effort_variables(effort, ["".join(parts)]).values())


@pytest.mark.parametrize("template", [SWITCH, HARMONY, PRINTED, ""])
def test_what_is_no_level(template: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        effort_variables("very", [template])
    assert (caught.value.param, caught.value.code) == ("reasoning_effort", "invalid_value")


def test_nothing_said() -> None:
    assert effort_variables(None, [PRINTED]) == {}
    assert effort_variables(None, [NO_THINK + MODE], {"thinking": None, "other": True}) == {}


@pytest.mark.parametrize(
    ("template", "on", "off"),
    [
        # The template has the switch itself.
        (SWITCH, {}, {}),
        (SWITCH + LOW_OR_HIGH, {}, {}),
        (KIMI, {}, {}),
        (HARMONY, {}, {}),
        (PRINTED, {}, {}),
        (LOW_OR_HIGH, {}, {"reasoning_effort": "low"}),
        (MINIMAL, {}, {"reasoning_effort": "minimal"}),
        (NO_THINK, {"reasoning_effort": "high"}, {"reasoning_effort": "no_think"}),
        (MODE, {"thinking_mode": "enabled"}, {"thinking_mode": "disabled"}),
        (REASONING, {"reasoning": True}, {"reasoning": False, "reasoning_effort": "none"}),
    ],
)
def test_switches_of_the_request_are_those_of_the_template(
    template: str, on: dict[str, Any], off: dict[str, Any]
) -> None:
    for name in ("enable_thinking", "thinking"):
        assert effort_variables(None, [template], {name: True}) == on
        assert effort_variables(None, [template], {name: False}) == off
    assert effort_variables("none", [template], {"thinking": True}) == effort_variables("none", [template])
