"""Custom tools of chat completions: requests, answers whole and streamed, and what is fed back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.core.request import ToolGrammar
from tests.unit.api.chat.chat_support import TOOL, USER, parse, refused
from tests.unit.api.chat.test_answers import CHAT, answered, choice

FREE = {"type": "custom", "custom": {"name": "shell", "description": "Runs it."}}
REGEX = {
    "type": "custom",
    "custom": {
        "name": "when",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{4}"}},
    },
}
HELD = {"shell": None, "when": ToolGrammar("regex", "[0-9]{4}", "tools[2].custom.format.grammar.definition")}
CALL = '<tool_call>\n{"name": "shell", "arguments": {"input": "a\\n\\u00e9\\"b"}}\n</tool_call>'
INPUT = 'a\né"b'


def tool_use(**fields: Any) -> Any:
    return parse("chat.completions", {"messages": [USER], "tools": [TOOL, FREE, REGEX], **fields}).tools


def test_a_custom_tool_is_a_function_of_its_input() -> None:
    tools = tool_use()
    assert tools.custom == HELD
    assert tools.offered[0] == TOOL
    function = tools.offered[1]["function"]
    assert (function["name"], function["description"]) == ("shell", "Runs it.")
    assert "description" not in tools.offered[2]["function"]
    for tool in tools.offered[1:]:
        parameters = tool["function"]["parameters"]
        assert (parameters["required"], parameters["additionalProperties"]) == (["input"], False)
        assert parameters["properties"]["input"]["type"] == "string"
    # The model is told what is held.
    assert "[0-9]{4}" in tools.offered[2]["function"]["parameters"]["properties"]["input"]["description"]
    assert (tools.callable, tools.required, tools.name, tools.checked) == (tools.offered, False, None, True)
    assert not parse("chat.completions", {"messages": [USER], "tools": [TOOL, FREE]}).tools.checked  # type: ignore[union-attr]


def test_a_large_grammar_is_not_all_of_the_prompt() -> None:
    grammar = {"syntax": "lark", "definition": "start: /a/" + " | /b/" * 10_000}
    tool = {"type": "custom", "custom": {"name": "big", "format": {"type": "grammar", "grammar": grammar}}}
    tools = tool_use(tools=[tool])
    assert tools.custom["big"].definition == grammar["definition"]
    assert len(json.dumps(tools.offered)) < 10_000


@pytest.mark.parametrize(
    ("chosen", "names", "required", "name"),
    [
        ({"type": "custom", "custom": {"name": "when"}}, ["when"], True, "when"),
        ("required", ["f", "shell", "when"], True, None),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [
                        {"type": "custom", "custom": {"name": "shell"}},
                        {"type": "function", "function": {"name": "f"}},
                    ],
                },
            },
            ["shell", "f"],
            False,
            None,
        ),
    ],
)
def test_the_choice(chosen: Any, names: list[str], required: bool, name: str | None) -> None:
    tools = tool_use(tool_choice=chosen)
    assert [tool["function"]["name"] for tool in tools.callable] == names
    assert (tools.required, tools.name) == (required, name)
    assert tools.custom == HELD


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [FREE, TOOL, FREE]}, "tools[2].custom.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [FREE, {"type": "function", "function": {"name": "shell"}}]}, "tools[1].function.name"),
        ({"tools": [FREE, FREE], "tool_choice": "none"}, "tools[1].custom.name"),
        # A custom tool is no function, and the other way round.
        ({"tool_choice": {"type": "function", "function": {"name": "shell"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools[0].custom.name"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "json"}}}]},
            "tools[0].custom.format.type",
        ),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "custom": {
                            "name": "a",
                            "format": {"type": "grammar", "grammar": {"syntax": "gbnf", "definition": "x"}},
                        },
                    }
                ]
            },
            "tools[0].custom.format.grammar.syntax",
        ),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "custom": {
                            "name": "a",
                            "format": {
                                "type": "grammar",
                                "grammar": {"syntax": "regex", "definition": "a" * (64 * 1024 + 1)},
                            },
                        },
                    }
                ]
            },
            "tools[0].custom.format.grammar.definition",
        ),
    ],
)
def test_bad_custom_tools(fields: dict[str, Any], param: str) -> None:
    assert refused("chat.completions", {"messages": [USER], "tools": [TOOL, FREE], **fields}).param == param


def test_calls_are_fed_back_as_calls_of_the_function() -> None:
    call = {"type": "custom", "id": "c1", "custom": {"name": "shell", "input": INPUT}}
    request = parse("chat.completions", {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]})
    assert request.prompt is not None
    assert request.prompt.messages is not None
    assert request.prompt.messages[1]["tool_calls"] == [
        {"type": "function", "id": "c1", "function": {"name": "shell", "arguments": {"input": INPUT}}}
    ]


def test_a_whole_answer() -> None:
    found = answered(CHAT, "ok", CALL, tools=[TOOL, FREE])
    (call,) = found["choices"][0]["message"]["tool_calls"]
    assert call.pop("id")
    assert call == {"type": "custom", "custom": {"name": "shell", "input": INPUT}}
    assert found["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("at", [20, 40, 55, len(CALL) - 15])
def test_a_streamed_answer(at: int) -> None:
    function_call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    *chunks, last = answered(CHAT, CALL[:at], CALL[at:], function_call, stream=True, tools=[TOOL, FREE])
    deltas = [call for one in chunks for call in one["choices"][0]["delta"].get("tool_calls", ())]
    begun = deltas[0]
    assert begun.pop("id")
    assert begun == {"index": 0, "type": "custom", "custom": {"name": "shell", "input": ""}}
    inputs = [delta for delta in deltas[1:] if delta["index"] == 0]
    assert all(set(delta) == {"index", "custom"} and set(delta["custom"]) == {"input"} for delta in inputs)
    assert "".join(delta["custom"]["input"] for delta in inputs) == INPUT
    functions = [delta for delta in deltas if delta["index"] == 1]
    assert functions[0]["type"] == "function"
    assert "".join(delta["function"]["arguments"] for delta in functions) == '{"a": 1}'
    assert last["choices"] == [choice("tool_calls", delta={})]


@pytest.mark.parametrize("stream", [False, True])
def test_bare_arguments_and_a_cut_call_lose_nothing(stream: bool) -> None:
    cut = '<tool_call>\n{"name": "shell", "arguments": {"input": "a\\u00'
    found = answered(CHAT, cut, reason="length", stream=stream, tools=[FREE])
    if stream:
        pieces = [call for one in found for call in one["choices"][0]["delta"].get("tool_calls", ())]
        assert "".join(piece["custom"]["input"] for piece in pieces) == "a\\u00"
    else:
        assert found["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == "a\\u00"
        assert found["choices"][0]["finish_reason"] == "length"
