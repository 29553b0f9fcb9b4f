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
