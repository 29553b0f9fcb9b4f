from __future__ import annotations

from typing import Any

import pytest

from openai_bls.triton_models.preprocessing.harmony import template_messages


def call(name: str, call_id: str | None = None) -> dict[str, Any]:
    function = {"type": "function", "function": {"name": name, "arguments": {}}}
    return function if call_id is None else {**function, "id": call_id}


def result(content: str, call_id: str | None = None) -> dict[str, Any]:
    message = {"role": "tool", "content": content}
    return message if call_id is None else {**message, "tool_call_id": call_id}


USER = {"role": "user", "content": "x"}


def test_thoughts_have_the_templates_name() -> None:
    assert template_messages([USER, {"role": "assistant", "content": "a", "reasoning_content": "t"}]) == [
        USER,
        {"role": "assistant", "content": "a", "thinking": "t"},
    ]


def test_what_is_said_before_a_call_joins_the_thoughts() -> None:
    said = {"role": "assistant", "content": "wait", "reasoning_content": "t", "tool_calls": [call("f", "1")]}
    (message, found) = template_messages([said, result("r", "1")])
    assert message == {"role": "assistant", "content": "", "thinking": "t\nwait", "tool_calls": [call("f", "1")]}
    assert found == result("r", "1")
    (alone,) = template_messages([{"role": "assistant", "content": "wait", "tool_calls": [call("f")]}])
    assert alone["content"] == "wait"


@pytest.mark.parametrize("ids", [("1", "2"), (None, None)])
def test_each_call_is_followed_by_its_result(ids: tuple[str | None, str | None]) -> None:
    one, two = ids
    results = [result("b", two), result("a", one)] if one else [result("a"), result("b")]
    given = [{"role": "assistant", "content": "", "tool_calls": [call("f", one), call("g", two)]}, *results, USER]
    assert template_messages(given) == [
        {"role": "assistant", "content": "", "tool_calls": [call("f", one)]},
        result("a", one),
        {"role": "assistant", "content": "", "tool_calls": [call("g", two)]},
        result("b", two),
        USER,
    ]


def test_results_without_a_call_are_left_to_the_template() -> None:
    assert template_messages([USER, result("r")]) == [USER, result("r")]
    given = [{"role": "assistant", "content": "", "tool_calls": [call("f", "1")]}, result("r", "1"), result("s", "9")]
    assert template_messages(given) == given
