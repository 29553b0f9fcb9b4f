from __future__ import annotations

from typing import Any

import pytest

from openai_bls.api.chat.thinking import switched
from openai_bls.api.chat.validation import parse_object
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

ON, OFF = switched(True), switched(False)


def chat(**fields: Any) -> ValidRequest:
    return parse_object("chat.completions", {"messages": [{"role": "user", "content": "hi"}], **fields})


@pytest.mark.parametrize(
    ("fields", "effort", "variables"),
    [
        ({"reasoning_effort": "low"}, "low", {}),
        ({"enable_thinking": False}, None, OFF),
        ({"enable_thinking": True}, None, ON),
        ({"thinking": {"type": "disabled"}}, None, OFF),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, None, {**ON, "thinking_budget": 7}),
        ({"thinking": {"type": "adaptive"}}, None, {}),
        ({"thinking": False}, None, OFF),
        ({"think": True}, None, ON),
        ({"think": "high"}, "high", {}),
        ({"thinking_token_budget": 0}, None, OFF),
        ({"thinking_token_budget": 9}, None, {**ON, "thinking_budget": 9}),
        ({"reasoning": {"effort": "none"}}, "none", {}),
        ({"reasoning": {"enabled": False}}, None, OFF),
        ({"reasoning": {"max_tokens": 5}}, None, {**ON, "thinking_budget": 5}),
        ({"reasoning": {"exclude": True}}, None, {}),
    ],
)
def test_hints(fields: dict[str, Any], effort: str | None, variables: dict[str, Any]) -> None:
    found = chat(**fields)
    assert found.prompt is not None
    assert (found.prompt.reasoning_effort, found.prompt.chat_template_kwargs) == (effort, variables)
    assert found.thinking_params == tuple(fields)
    assert found.ignored == ()


def test_variables_of_the_request_count_more() -> None:
    found = chat(enable_thinking=True, chat_template_kwargs={"enable_thinking": False})
    assert found.prompt is not None
    assert found.prompt.chat_template_kwargs == {**ON, "enable_thinking": False}


def test_thoughts_may_be_left_out() -> None:
    assert chat(reasoning={"exclude": True}).include_reasoning is False
    assert chat(reasoning={"exclude": False}).include_reasoning is True


def test_names_of_max_tokens() -> None:
    assert chat(n_predict=5).max_tokens == 5
    assert chat(n_predict=-1).max_tokens is None
    with pytest.raises(InvalidRequestError) as caught:
        chat(n_predict=5, max_tokens=5)
    assert caught.value.param == "max_tokens"
