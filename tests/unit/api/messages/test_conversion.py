from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.messages.conversion import decode
from openai_bls.api.messages.schema import UNSUPPORTED, MessagesRequest, PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ToolUse, ValidRequest
from tests.unit.api.chat.chat_support import asked_for
from tests.unit.api.messages.messages_support import WEATHER, body, converted, field_at_fault, prompt_of

FUNCTION = {"name": "get_weather", "description": WEATHER["description"], "parameters": WEATHER["input_schema"]}
OFFERED = [{"type": "function", "function": FUNCTION}]
TOOLS = [WEATHER]
ENABLED = {"type": "enabled", "budget_tokens": 1024}
ON = {"enable_thinking": True, "thinking": True}
OFF = {"enable_thinking": False, "thinking": False, "thinking_budget": 0}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


def valid(**fields: Any) -> ValidRequest:
    return converted(**fields).valid


@pytest.mark.parametrize(
    ("given", "field", "wanted"),
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
def test_fields(given: dict[str, Any], field: str, wanted: Any) -> None:
    assert asked_for(valid(**given), field) == wanted


HARMLESS: dict[str, Any] = {
    "metadata": {"user_id": "x"},
    "service_tier": "auto",
    "cache_control": {"type": "ephemeral", "ttl": "5m"},
    "user_profile_id": "u",
    "workspace_id": "w",
    "speed": "fast",
    "container": "container_1",
    "diagnostics": {"previous_message_id": "msg_1"},
}
HARMLESS_IN_A_TOOL: dict[str, Any] = {
    "type": "custom",
    "cache_control": {"type": "ephemeral"},
    "eager_input_streaming": True,
    "defer_loading": True,
    "allowed_callers": ["direct", "code_execution_20250825"],
    "input_examples": [],
}


def plain(**fields: Any) -> ValidRequest:
    """A request without what it says of the fields that were taken without effect."""
    return msgspec.structs.replace(valid(**fields), ignored=(), thinking_params=())


def test_what_changes_nothing() -> None:
    assert plain(**HARMLESS) == valid()
    assert set(valid(**HARMLESS).ignored) == set(HARMLESS)
    for name, value in HARMLESS.items():
        assert valid(**{name: value}).ignored == (name,)
    optional = set(MessagesRequest.__struct_fields__) - {"model", "messages", "max_tokens"}
    request = decode(json.dumps({**body(), **dict.fromkeys(optional)}).encode(), MessagesRequest, IgnoredFields())
    assert {getattr(request, name) for name in optional} == {None}
    for more in (HARMLESS_IN_A_TOOL, {"type": None}):
        assert plain(tools=[{**WEATHER, **more}]) == valid(tools=TOOLS)
    noted = {f"tools[].{name}" for name in ("cache_control", "eager_input_streaming", "defer_loading")}
    assert set(valid(tools=[{**WEATHER, **HARMLESS_IN_A_TOOL}]).ignored) == noted


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_fields_that_are_not_supported(name: str) -> None:
    for value in UNSUPPORTED[name].values:
        assert valid(**{name: value}) == valid()
    for value in ("x", [{}], {"id": "x"}, 7):
        assert field_at_fault(**{name: value}) == name


def test_counting_takes_what_makes_the_prompt() -> None:
    request = body(max_tokens=None, system="s", tools=TOOLS, tool_choice={"type": "none"}, output_config={})
    decode(json.dumps(request).encode(), PromptRequest, IgnoredFields())
    with pytest.raises(InvalidRequestError) as caught:
        decode(json.dumps(body()).encode(), PromptRequest, IgnoredFields())
    assert caught.value.param == "max_tokens"


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
    if choice is not None and expected is not None:
        for disabled in (True, False, None):
            request = valid(tools=TOOLS, tool_choice={**choice, "disable_parallel_tool_use": disabled})
            assert request.parallel_tool_calls is not bool(disabled)


def test_strict_tools_are_checked() -> None:
    tools = valid(tools=[{**WEATHER, "strict": True}]).tools
    assert tools is not None
    assert tools.checked
    assert tools.offered[0]["function"]["strict"] is True


@pytest.mark.parametrize(
    ("thinking", "thinks", "expected"),
    [
        (None, True, {}),
        (ENABLED, True, {**ON, "thinking_budget": 1024}),
        ({"type": "adaptive"}, True, ON),
        ({"type": "between_tools"}, True, ON),
        ({"type": "adaptive"}, False, {}),
        (ENABLED, False, {}),
        ({"type": "disabled"}, True, OFF),
        ({"type": "disabled"}, False, OFF),
    ],
)
def test_thinking(thinking: dict[str, Any] | None, thinks: bool, expected: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"thinking": thinking, "thinks": thinks, "max_tokens": 2000}
    assert prompt_of(**fields).chat_template_kwargs == expected
    assert valid(**fields).include_reasoning is (expected != OFF)
    if expected not in ({}, OFF):
        for display in (None, "summarized", "omitted"):
            shown = converted(**{**fields, "thinking": {**(thinking or {}), "display": display}})
            assert shown.omit_thinking is (display == "omitted")


@pytest.mark.parametrize("fields", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}])
def test_structured_output(fields: dict[str, Any]) -> None:
    structured = valid(**fields).structured
    assert structured is not None
    assert structured.format == {"type": "json_schema", "json_schema": SCHEMA}


@pytest.mark.parametrize("effort", [None, "high", "low", "medium", "xhigh", "max"])
def test_effort(effort: str | None) -> None:
    request = converted(output_config={"effort": effort}).valid
    assert request.prompt is not None
    assert request.prompt.reasoning_effort == effort
    assert request.thinking_params == (() if effort is None else ("output_config.effort",))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        *(({"max_tokens": value}, "max_tokens") for value in (None, -1, 2**31, "5")),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        *(({"temperature": value}, "temperature") for value in (1.1, -0.1)),
        *(({"top_p": value}, "top_p") for value in (2, -1)),
        ({"top_k": -1}, "top_k"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        *(({"stop_sequences": value}, "stop_sequences") for value in ("x", ["x"] * 17)),
        *(({"stop_sequences": value}, "stop_sequences.1") for value in (["x", ""], ["x", 7])),
        ({"stop_sequences": [7]}, "stop_sequences.0"),
        ({"service_tier": "fast"}, "service_tier"),
        ({"metadata": "x"}, "metadata"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "none", "disable_parallel_tool_use": True}},
            "tool_choice.disable_parallel_tool_use",
        ),
        ({"thinking": ENABLED, "max_tokens": 1024}, "thinking.budget_tokens"),
        ({"thinking": ENABLED, "max_tokens": 1024, "thinks": False}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
        ({"thinking": {"type": "disabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "full"}}, "thinking.display"),
        ({"output_config": {"format": FORMAT}, "output_format": FORMAT}, "output_format"),
        ({"output_format": {"type": "json_object"}}, "output_format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"output_config": {"verbosity": "low"}}, "output_config.verbosity"),
        ({"system": 7}, "system"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], place: str) -> None:
    assert field_at_fault(**{"thinks": True, **fields}) == place


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"type": "web_search", "name": "web_search"}, ""),
        ({"type": "x" * 1000, "name": "x"}, ""),
        ({"type": {}, "name": "x"}, ".type"),
        ({"type": "bash_20250124"}, ".name"),
        ({"type": "bash_20250124", "name": "bash", "max_uses": 5}, ".max_uses"),
        ({"name": "x"}, ".input_schema"),
        ({**WEATHER, "input_schema": []}, ".input_schema"),
        ({**WEATHER, "parameters": {}}, ".parameters"),
        ({**WEATHER, "defer_loading": 1}, ".defer_loading"),
        ({**WEATHER, "allowed_callers": [1]}, ".allowed_callers.0"),
        ({**WEATHER, "input_examples": ["x"]}, ".input_examples.0"),
        ({**WEATHER, "name": "with space"}, ".name"),
        ({**WEATHER, "name": ""}, ".name"),
    ],
)
def test_tools_that_are_refused(tool: dict[str, Any], place: str) -> None:
    assert field_at_fault(tools=[tool]) == f"tools.0{place}"


# --- Anthropic's own tools ---

LEFT_OUT = (
    "web_search_20250305",
    "web_fetch_20260209",
    "code_execution_20250825",
    "tool_search_tool_regex_20251119",
    "tool_search_tool_bm25",
    "computer_20251124",
    "advisor_20260301",
)


def named(kind: str) -> dict[str, Any]:
    return {"type": kind, "name": kind.rpartition("_")[0], "cache_control": None, "max_uses": 5}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_tools_of_anthropics_servers_are_left_out_and_named(kind: str) -> None:
    server = named(kind)
    request = valid(tools=[server, WEATHER], tool_choice={"type": "any"})
    assert request.ignored == (f"tools[{kind}]",)
    assert request.tools is not None
    assert request.tools.offered == OFFERED
    for choice in (None, {"type": "auto"}, {"type": "none"}):
        assert valid(tools=[server], tool_choice=choice).tools is None
    forced = {"type": "tool", "name": server["name"]}
    assert field_at_fault(tools=[server, WEATHER], tool_choice=forced) == "tool_choice.name"
    assert field_at_fault(tools=[server], tool_choice=forced) == "tool_choice.name"
    assert field_at_fault(tools=[server], tool_choice={"type": "any"}) == "tool_choice"


@pytest.mark.parametrize(
    ("kind", "name", "commands"),
    [
        ("bash_20250124", "bash", None),
        ("text_editor_20250124", "str_replace_editor", {"view", "create", "str_replace", "insert", "undo_edit"}),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"view", "create", "str_replace", "insert"}),
        ("memory_20250818", "memory", {"view", "create", "str_replace", "insert", "delete", "rename"}),
    ],
)
def test_tools_that_the_client_runs_are_functions(kind: str, name: str, commands: set[str] | None) -> None:
    tool = {"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}
    request = valid(tools=[tool], tool_choice={"type": "tool", "name": name})
    assert request.tools is not None
    (function,) = (offered["function"] for offered in request.tools.offered)
    assert function["name"] == name
    assert function["description"]
    command = function["parameters"]["properties"]["command"]
    assert (set(command["enum"]) if commands else None) == commands


def test_a_tool_that_only_others_may_call_is_left_out() -> None:
    tool = {**WEATHER, "name": "inner", "allowed_callers": ["code_execution_20250825"]}
    request = valid(tools=[tool, WEATHER])
    assert request.tools is not None
    assert request.tools.offered == OFFERED
    assert request.ignored == ("tools[].allowed_callers",)
    assert field_at_fault(tools=[tool], tool_choice={"type": "tool", "name": "inner"}) == "tool_choice.name"


@pytest.mark.parametrize("description", [None, "The weather in a city"])
def test_examples_of_inputs_are_told_to_the_model(description: str | None) -> None:
    tool = {**WEATHER, "description": description, "input_examples": [{"city": "Köln"}, {"city": "Ulm"}]}
    tools = valid(tools=[tool]).tools
    assert tools is not None
    told = tools.offered[0]["function"]["description"]
    assert told.startswith(description or "Examples")
    assert told.endswith('{"city":"Köln"}\n{"city":"Ulm"}')


def test_thinking_without_effect_is_named_where_the_model_does_not_think() -> None:
    request = valid(thinking=ENABLED, max_tokens=2000, output_config={"effort": "low", "task_budget": {"total": 1}})
    assert request.thinking_params == ("output_config.effort", "thinking")
    assert request.ignored == ("output_config.task_budget",)
