from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.api.messages.conversion import decode
from openai_bls.api.messages.errors import error_body
from openai_bls.api.messages.schema import UNSUPPORTED, MessagesRequest, PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ToolUse, ValidRequest
from tests.unit.api.messages.messages_support import WEATHER, body, converted

FUNCTION = {"name": "get_weather", "description": WEATHER["description"], "parameters": WEATHER["input_schema"]}
OFFERED = [{"type": "function", "function": FUNCTION}]
TOOLS = [WEATHER]


def told(**fields: Any) -> str:
    """What a client is told of a bad request."""
    with pytest.raises(InvalidRequestError) as caught:
        converted(**fields)
    message: str = error_body(caught.value)["error"]["message"]
    return message


def valid(**fields: Any) -> ValidRequest:
    return converted(**fields).valid


def kwargs(**fields: Any) -> dict[str, Any]:
    prompt = valid(**fields).prompt
    assert prompt is not None
    return prompt.chat_template_kwargs


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({}, "model", "tiny"),
        ({}, "max_tokens", 50),
        ({"max_tokens": 0}, "max_tokens", 0),
        ({}, "temperature", None),
        ({"temperature": 1}, "temperature", 1.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": 7}, "top_k", 7),
        ({"top_k": 0}, "top_k", 0),
        ({"stop_sequences": ["a", "b"]}, "stop", ("a", "b")),
        ({"stop_sequences": []}, "stop", ()),
        ({}, "stream", False),
        ({"stream": True}, "stream", True),
        ({"stream": False}, "stream", False),
    ],
)
def test_fields(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(valid(**given), field) == value


HARMLESS: dict[str, Any] = {
    "metadata": {"user_id": "x"},
    "service_tier": "auto",
    "cache_control": {"type": "ephemeral", "ttl": "5m"},
    "user_profile_id": "u",
    "workspace_id": "w",
}


def test_harmless_fields_change_nothing() -> None:
    assert valid(**HARMLESS) == valid()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_fields_that_are_first_unsupported(name: str) -> None:
    for value in UNSUPPORTED[name].values:
        assert valid(**{name: value}) == valid()
    assert decode(json.dumps({**body(), name: None}).encode(), MessagesRequest)
    for value in ("x", [{}], {"id": "x"}, 7):
        message = told(**{name: value})
        assert message.startswith(f"{name}: this is not supported")


def test_null_is_the_default() -> None:
    whole = set(MessagesRequest.__struct_fields__) - {"model", "messages", "max_tokens"}
    request = decode(json.dumps({**body(), **dict.fromkeys(whole)}).encode(), MessagesRequest)
    for name in whole:
        assert getattr(request, name) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "model: Field required"),
        ({"model": ""}, "model: Expected `str` of length >= 1"),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": -1}, "max_tokens: Expected `int` >= 0"),
        ({"max_tokens": 2**31}, "max_tokens: Expected `int` <= 2147483647"),
        ({"max_tokens": "5"}, "max_tokens: Expected `int`, got `str`"),
        ({"messages": None}, "messages: Field required"),
        ({"temperature": 1.1}, "temperature: Expected `float` <= 1.0"),
        ({"temperature": -0.1}, "temperature: Expected `float` >= 0.0"),
        ({"top_p": 2}, "top_p: Expected `float` <= 1.0"),
        ({"top_p": 0}, "Invalid value for 'top_p'"),
        ({"top_k": -1}, "top_k: Expected `int` >= 0"),
        ({"frequency_penalty": 1}, "frequency_penalty: Extra inputs are not permitted"),
        ({"stop_sequences": "x"}, "stop_sequences: Expected `array"),
        ({"stop_sequences": [7]}, "stop_sequences.0: Expected `str`, got `int`"),
        ({"stop_sequences": [""]}, "'stop_sequences' holds an empty string"),
        ({"stop_sequences": ["x"] * 17}, "'stop_sequences' has 17 strings"),
        ({"service_tier": "fast"}, "service_tier: Invalid enum value 'fast'"),
        ({"metadata": "x"}, "metadata: Expected `object"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    assert message in told(**fields)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"null", b'{"max_tokens": NaN}', b"[" * 100_000])
def test_what_is_no_body(text: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode(text, MessagesRequest)


def test_counting_takes_what_makes_the_prompt() -> None:
    request = body(max_tokens=None, system="s", tools=TOOLS, tool_choice={"type": "none"}, output_config={})
    decode(json.dumps(request).encode(), PromptRequest)
    with pytest.raises(InvalidRequestError, match="max_tokens: Extra inputs"):
        decode(json.dumps(body()).encode(), PromptRequest)


# --- tools ---


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolUse(offered=OFFERED, callable=OFFERED)),
        ({"type": "auto"}, ToolUse(offered=OFFERED, callable=OFFERED)),
        ({"type": "any"}, ToolUse(offered=OFFERED, callable=OFFERED, required=True)),
        (
            {"type": "tool", "name": "get_weather"},
            ToolUse(offered=OFFERED, callable=OFFERED, required=True, name="get_weather"),
        ),
        ({"type": "none"}, None),
    ],
)
def test_tool_choice(choice: dict[str, Any] | None, expected: ToolUse | None) -> None:
    request = valid(tools=TOOLS, tool_choice=choice)
    assert request.tools == expected
    assert request.parallel_tool_calls


@pytest.mark.parametrize("kind", ["auto", "any", "tool"])
@pytest.mark.parametrize("disabled", [True, False, None])
def test_parallel_calls(kind: str, disabled: bool | None) -> None:
    choice: dict[str, Any] = {"type": kind, "disable_parallel_tool_use": disabled}
    if kind == "tool":
        choice["name"] = "get_weather"
    assert valid(tools=TOOLS, tool_choice=choice).parallel_tool_calls is not bool(disabled)


@pytest.mark.parametrize(
    "more",
    [
        {"type": "custom"},
        {"type": None},
        {"cache_control": {"type": "ephemeral"}},
        {"eager_input_streaming": True},
        {"defer_loading": False},
        {"allowed_callers": ["direct"]},
        {"input_examples": []},
    ],
)
def test_what_changes_nothing_about_a_tool(more: dict[str, Any]) -> None:
    assert valid(tools=[{**WEATHER, **more}]) == valid(tools=TOOLS)


def test_strict_tools_are_checked() -> None:
    tools = valid(tools=[{**WEATHER, "strict": True}]).tools
    assert tools is not None
    assert tools.checked
    assert tools.offered[0]["function"]["strict"] is True


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "web_search_20250305", "name": "web_search"}, "tools.0: a tool of type 'web_search_20250305'"),
        ({"type": "bash_20250124", "name": "bash"}, "'bash_20250124' is not supported"),
        ({"type": "computer_20250124", "name": "computer"}, "'computer_20250124' is not supported"),
        ({"type": {}, "name": "x"}, "tools.0: a tool of type '{}'"),
        ({"name": "x"}, "tools.0.input_schema: Field required"),
        ({**WEATHER, "input_schema": []}, "tools.0.input_schema: Expected `object`, got `array`"),
        ({**WEATHER, "parameters": {}}, "tools.0.parameters: Extra inputs are not permitted"),
        ({**WEATHER, "defer_loading": True}, "tools.0.defer_loading"),
        ({**WEATHER, "allowed_callers": ["code_execution_20250825"]}, "tools.0.allowed_callers"),
        ({**WEATHER, "input_examples": [{}]}, "tools.0.input_examples"),
        ({**WEATHER, "name": "with space"}, "'tools.0.name'"),
        ({**WEATHER, "name": ""}, "'tools.0.name'"),
    ],
)
def test_tools_that_are_refused(tool: dict[str, Any], message: str) -> None:
    assert message in told(tools=[tool])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": {"type": "any"}}, "'tool_choice' is only allowed when 'tools' are specified"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "'tool_choice' names 'x'"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name: Field required"),
        ({"tools": TOOLS, "tool_choice": {"type": "required"}}, "tool_choice.type: Invalid value 'required'"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice.type: Field required"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice: Expected `object"),
        ({"tools": TOOLS, "tool_choice": {"type": "none", "disable_parallel_tool_use": True}}, "Extra inputs"),
    ],
)
def test_bad_tool_choices(fields: dict[str, Any], message: str) -> None:
    assert message in told(**fields)


# --- thinking ---

ENABLED = {"type": "enabled", "budget_tokens": 1024}
ON = {"enable_thinking": True, "thinking": True}
OFF = {"enable_thinking": False, "thinking": False, "thinking_budget": 0}


@pytest.mark.parametrize(
    ("thinking", "thinks", "expected"),
    [
        (None, True, {}),
        (ENABLED, True, {**ON, "thinking_budget": 1024}),
        ({"type": "adaptive"}, True, ON),
        ({"type": "adaptive"}, False, {}),
        ({"type": "disabled"}, True, OFF),
        ({"type": "disabled"}, False, OFF),
    ],
)
def test_thinking(thinking: dict[str, Any] | None, thinks: bool, expected: dict[str, Any]) -> None:
    fields = {"thinking": thinking, "thinks": thinks, "max_tokens": 2000}
    assert kwargs(**fields) == expected
    assert valid(**fields).include_reasoning is (expected != OFF)


@pytest.mark.parametrize(("display", "omitted"), [(None, False), ("summarized", False), ("omitted", True)])
def test_whether_thoughts_are_told(display: str | None, omitted: bool) -> None:
    for thinking in ({**ENABLED, "display": display}, {"type": "adaptive", "display": display}):
        assert converted(thinking=thinking, thinks=True, max_tokens=2000).omit_thinking is omitted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"thinking": ENABLED, "max_tokens": 2000, "thinks": False}, "thinking: this model does not think"),
        ({"thinking": ENABLED, "max_tokens": 1024}, "thinking.budget_tokens: it must be less than max_tokens (1024)"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens: Expected `int` >= 1024"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: Field required"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type: Invalid value 'between_tools'"),
        ({"thinking": {"type": "disabled", "budget_tokens": 1024}}, "Extra inputs"),
        ({"thinking": {"type": "adaptive", "display": "full"}}, "thinking.display: Invalid enum value 'full'"),
    ],
)
def test_bad_thinking(fields: dict[str, Any], message: str) -> None:
    assert message in told(**{"thinks": True, **fields})


# --- output ---

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize("fields", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}])
def test_structured_output(fields: dict[str, Any]) -> None:
    structured = valid(**fields).structured
    assert structured is not None
    assert structured.format == {"type": "json_schema", "json_schema": SCHEMA}


@pytest.mark.parametrize(
    ("effort", "expected"),
    [(None, None), ("high", None), ("low", "low"), ("medium", "medium"), ("xhigh", "xhigh"), ("max", "max")],
)
def test_effort(effort: str | None, expected: str | None) -> None:
    prompt = valid(output_config={"effort": effort}).prompt
    assert prompt is not None
    assert prompt.reasoning_effort == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"output_config": {"format": FORMAT}, "output_format": FORMAT}, "output_format: it says the same"),
        ({"output_format": {"type": "json_object"}}, "output_format.type: Invalid value 'json_object'"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema: Field required"),
        ({"output_config": {"effort": "none"}}, "output_config.effort: Invalid enum value 'none'"),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget: Extra inputs"),
    ],
)
def test_bad_output_config(fields: dict[str, Any], message: str) -> None:
    assert message in told(**fields)
