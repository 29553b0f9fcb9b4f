"""What coding agents send to /v1/responses: bodies of the shape of Codex CLI's first and second request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.api.responses.responses_support import PATH, Client, Place, call_text
from tests.unit.api.responses.tools.test_toolbox import function, namespace
from tests.unit.core_support import until

PATCH_GRAMMAR = """start: "*** Begin" LF line+ "*** End" LF?
line: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""
SHELL = function(
    "exec_command",
    description="Runs a command.",
    strict=False,
    parameters={"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
)
AGENTS = namespace(
    "multi_agent_v1",
    function("spawn_agent", description="Begins an agent.", strict=False, parameters={"type": "object"}),
    function("close_agent", description="Ends an agent.", strict=False, parameters={"type": "object"}),
    description="Tools for further agents.",
)
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
WEB = {"type": "web_search", "external_web_access": False, "search_content_types": ["text"]}


def message(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


FIRST: dict[str, Any] = {
    "instructions": "You are an agent that works on code.",
    "input": [
        message("developer", "The sandbox may write to the working folder."),
        message("user", "<environment_context>linux</environment_context>"),
        message("user", "Rename the function."),
    ],
    "tools": [SHELL, AGENTS, PATCH, SEARCH, WEB, {"type": "image_generation", "output_format": "png"}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto", "context": "all_turns"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "6f1f2a9e",
    "text": {"verbosity": "low"},
    "client_metadata": {"session": "6f1f2a9e", "turn": "{}"},
}
ANSWERS = [
    call_text("exec_command", '{"cmd": "cat a.py"}'),
    call_text("multi_agent_v1__spawn_agent", '{"task": "read"}'),
    call_text("apply_patch", json.dumps({"input": "*** Begin\n-a\n+b\n*** End\n"})),
    call_text("tool_search", '{"query": "issues"}'),
]


def output(item: dict[str, Any]) -> dict[str, Any]:
    """The agent's answer to a call."""
    if item["type"] == "tool_search_call":
        found = namespace("tracker", function("list_issues", defer_loading=True), description="Issues.")
        kept = {"call_id": item["call_id"], "status": "completed", "execution": "client"}
        return {"type": "tool_search_output", **kept, "tools": [found]}
    kind = "custom_tool_call_output" if item["type"] == "custom_tool_call" else "function_call_output"
    return {"type": kind, "call_id": item["call_id"], "output": f"done: {item['name']}"}


def fed_back(item: dict[str, Any]) -> dict[str, Any]:
    """An item of an answer as an agent without stored responses sends it back."""
    dropped = {"id", "status"} if item["type"] != "tool_search_call" else {"id"}
    return {name: value for name, value in item.items() if name not in dropped}


def test_the_first_request_and_what_follows_it() -> None:
    place = Place()
    reply = place.create(FIRST, ["<think>", "hm", "</think>", *ANSWERS])
    assert reply.status == 200, reply.text
    ignored = reply.headers["openai-bls-ignored"].split(", ")
    assert set(ignored) == {
        *("tools[web_search]", "tools[image_generation]", "client_metadata", "prompt_cache_key"),
        "text.verbosity",
    }
    items = reply.events[-1]["response"]["output"]
    assert [(item["type"], item.get("namespace"), item.get("name")) for item in items] == [
        ("reasoning", None, None),
        ("function_call", None, "exec_command"),
        ("function_call", "multi_agent_v1", "spawn_agent"),
        ("custom_tool_call", None, "apply_patch"),
        ("tool_search_call", None, None),
    ]
    tools = place.bench.prompts.requests[-1].tools or []
    shown = ["exec_command", "multi_agent_v1__spawn_agent", "multi_agent_v1__close_agent", "apply_patch", "tool_search"]
    assert [tool["function"]["name"] for tool in tools] == shown

    second = {**FIRST, "input": [*FIRST["input"], *map(fed_back, items), *map(output, items[1:])]}
    reply = place.create(second, [call_text("tracker__list_issues", "{}")])
    assert reply.status == 200, reply.text
    system, *_, asked, turn, first, second_, third, fourth = place.messages
    assert system == {"role": "system", "content": FIRST["instructions"]}
    assert asked["content"] == "Rename the function."
    assert turn["reasoning_content"] == "hm"
    assert [call["function"]["name"] for call in turn["tool_calls"]] == [shown[0], shown[1], shown[3], shown[4]]
    assert turn["tool_calls"][2]["function"]["arguments"] == {"input": "*** Begin\n-a\n+b\n*** End\n"}
    results = [result["content"] for result in (first, second_, third, fourth)]
    assert results == [
        *("done: exec_command", "done: spawn_agent", "done: apply_patch"),
        '{"tools":["tracker__list_issues"]}',
    ]
    # What the search has found can be called.
    (call,) = reply.events[-1]["response"]["output"]
    assert (call["namespace"], call["name"]) == ("tracker", "list_issues")


def test_tools_that_come_as_the_first_item() -> None:
    place = Place()
    further = {"type": "additional_tools", "role": "developer", "tools": [AGENTS, PATCH, WEB]}
    body = {**FIRST, "tools": [SHELL], "input": [further, *FIRST["input"]]}
    reply = place.create(body, [ANSWERS[1]])
    assert reply.status == 200, reply.text
    assert "input[].tools[web_search]" in reply.headers["openai-bls-ignored"]
    (call,) = reply.events[-1]["response"]["output"]
    assert (call["namespace"], call["name"]) == ("multi_agent_v1", "spawn_agent")
    assert place.messages[1]["content"] == "The sandbox may write to the working folder."


ENDPOINTS = {
    "count": f"{PATH}/input_tokens",
    "render": f"{PATH}/render",
    "compact": f"{PATH}/compact",
    "conversation": "/v1/conversations",
}


@pytest.mark.parametrize("name", ["count", "render"])
def test_the_prompt_is_the_same_wherever_it_is_asked_for(name: str) -> None:
    place = Place()
    further = {"type": "additional_tools", "role": "developer", "tools": [namespace("n", function("f"))]}
    call = {"type": "function_call", "namespace": "n", "name": "f", "call_id": "c", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    body = {"input": [further, message("user", "hi"), call, result], "tools": [PATCH]}
    place.whole({**body, "tool_choice": "auto"})
    asked = place.bench.prompts.requests[-1]
    reply = place.ask("POST", ENDPOINTS[name], body)
    assert reply.status == 200, reply.text
    again = place.bench.prompts.requests[-1]
    assert (again.messages, again.tools) == (asked.messages, asked.tools)


def test_a_conversation_that_is_compacted_keeps_its_tools() -> None:
    place = Place()
    further = {"type": "additional_tools", "role": "developer", "tools": [namespace("n", function("f"))]}
    call = {"type": "function_call", "namespace": "n", "name": "f", "call_id": "c", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}

    def feed() -> None:
        place.bench.engine.deliver(len(place.bench.engine.requests) - 1, "All is done.", "stop")

    items = [further, message("user", "hi"), call, result]
    reply = place.ask("POST", ENDPOINTS["compact"], {"input": items}, feed=feed)
    assert reply.status == 200, reply.text
    # The summary calls nothing.
    assert not place.bench.prompts.requests[-1].tools
    kept = reply.json()["output"]
    assert [item["type"] for item in kept] == ["additional_tools", "message", "compaction"]
    place.whole({"input": [*kept, message("user", "go on")]})
    assert [tool["function"]["name"] for tool in place.bench.prompts.requests[-1].tools or []] == ["n__f"]


def test_a_conversation_has_the_items() -> None:
    place = Place()
    further = {"type": "additional_tools", "role": "developer", "tools": [AGENTS, WEB]}
    reply = place.ask("POST", ENDPOINTS["conversation"], {"items": [further, {"type": "web_search_call"}]})
    assert reply.status == 200, reply.text
    assert set(reply.headers["openai-bls-ignored"].split(", ")) == {
        "items[].tools[web_search]",
        "items[web_search_call]",
    }
    conversation = reply.json()["id"]
    response = place.whole({"conversation": conversation, "input": "go"}, [ANSWERS[1]])
    assert response["output"][0]["namespace"] == "multi_agent_v1"
    listed = place.ask("GET", f"/v1/conversations/{conversation}/items", query="order=asc").json()["data"]
    kinds = [item["type"] for item in listed]
    assert kinds == ["additional_tools", "web_search_call", "message", "function_call"]
    bad = {"items": [{**further, "tools": [AGENTS, AGENTS]}]}
    refused = place.ask("POST", f"/v1/conversations/{conversation}/items", bad)
    assert (refused.status, refused.error["param"]) == (400, "items[0].tools[1].name")


async def test_the_events_of_a_background_response_can_be_asked_for_again() -> None:
    client = Client(Place())
    body = {"input": "go", "tools": [AGENTS, PATCH], "background": True, "stream": True}
    asked = asyncio.ensure_future(client.send("POST", PATH, body))
    await until(lambda: bool(client.engine.requests))
    client.engine.deliver(0, ANSWERS[1] + ANSWERS[2], "stop")
    events = (await asked).events
    response_id = events[-1]["response"]["id"]
    assert [item.get("namespace") for item in events[-1]["response"]["output"]] == ["multi_agent_v1", None]
    after = await client.send("GET", f"{PATH}/{response_id}", query="stream=true&starting_after=4")
    again = [json.loads(block.split("data: ")[1]) for block in after.text.split("\n\n") if block]
    assert again == events[5:]
    assert (await client.get(response_id))["output"] == events[-1]["response"]["output"]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"client_metadata": {"a": "b"}}, {"client_metadata"}),
        ({"max_tool_calls": 3}, {"max_tool_calls"}),
        ({"include": ["file_search_call.results", "web_search_call.action.sources"]}, set()),
        ({"include": ["message.input_image.image_url", "code_interpreter_call.outputs"]}, set()),
        ({"truncation": "auto"}, set()),
        ({"reasoning": {"summary": "detailed", "context": "current_turn"}}, set()),
        ({"text": {"verbosity": "high"}}, {"text.verbosity"}),
    ],
)
def test_what_changes_no_answer_is_taken(body: dict[str, Any], names: set[str]) -> None:
    place = Place()
    reply = place.create(body)
    assert reply.status == 200, reply.text
    assert set(filter(None, reply.headers.get("openai-bls-ignored", "").split(", "))) == names
    shown = reply.json()
    for name in ("max_tool_calls", "truncation"):
        assert shown[name] == body.get(name, {"truncation": "disabled"}.get(name))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [WEB], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [AGENTS, AGENTS]}, "tools[1].name"),
        ({"tools": [function("multi_agent_v1__close_agent"), AGENTS]}, "tools[1].tools[1].name"),
        ({"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0].format.definition"),
        ({"tools": [SHELL, {**AGENTS, "tools": [function("f", parameters=[])]}]}, "tools[1].tools[0].parameters"),
        ({"client_metadata": "x"}, "client_metadata"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"truncation": "some"}, "truncation"),
    ],
)
def test_refused_with_the_path(body: dict[str, Any], param: str) -> None:
    assert Place().refused(**body)["param"] == param
