"""Input items about tools: how they are kept, what the model sees of them, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseItem

from openai_bls.api.responses.tools.items import HOSTED_ITEMS
from tests.unit.api.responses.responses_support import PATH, Place, anonymous, checked
from tests.unit.api.responses.tools.test_toolbox import function, namespace
from tests.unit.core_support import EOS

USER = {"role": "user", "content": "hi"}
NAMED = {"type": "function_call", "call_id": "c1", "namespace": "n", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin\n"}
ACTION = {"type": "exec", "command": ["ls", "-l"], "env": {}}
SHELL = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c3", "status": "completed", "action": ACTION}
SEARCH = {"type": "tool_search_call", "execution": "client", "call_id": "c4", "arguments": {"query": "q"}}
FOUND = {
    "type": "tool_search_output",
    "execution": "client",
    "call_id": "c4",
    "tools": [namespace("m", function("g", defer_loading=True), description="About m."), function("h")],
}
FURTHER = {"type": "additional_tools", "role": "developer", "tools": [namespace("n", function("f"), description="N.")]}
PARTS = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]


def output(kind: str, call_id: str, text: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": text, **more}


CONVERSATION: list[dict[str, Any]] = [
    FURTHER,
    USER,
    NAMED,
    output("function_call_output", "c1"),
    CUSTOM,
    output("custom_tool_call_output", "c2", PARTS),
    SHELL,
    {"type": "local_shell_call_output", "id": "c3", "output": "files"},
    SEARCH,
    FOUND,
]


def test_the_chat_that_they_become() -> None:
    place = Place()
    place.whole({"input": CONVERSATION})
    calls = [message["tool_calls"][0] for message in place.messages if message["role"] == "assistant"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("c1", "n__f", {}),
        ("c2", "patch", {"input": "*** Begin\n"}),
        ("c3", "local_shell", ACTION),
        ("c4", "tool_search", {"query": "q"}),
    ]
    results = [message for message in place.messages if message["role"] == "tool"]
    assert [(message["tool_call_id"], message["content"]) for message in results] == [
        ("c1", "done"),
        ("c2", "a\nb"),
        ("c3", "files"),
        ("c4", '{"tools":["m__g","h"]}'),
    ]
    assert len(place.messages) == 1 + 2 * len(calls)
    tools = place.bench.prompts.requests[-1].tools or []
    assert [tool["function"]["name"] for tool in tools] == ["n__f", "m__g", "h"]
    assert tools[1]["function"]["description"] == "m: About m."


def test_they_are_kept_and_go_on() -> None:
    place = Place()
    first = place.whole({"input": CONVERSATION})
    kept = place.ask("GET", f"{PATH}/{first['id']}/input_items", query="order=asc").json()["data"]
    assert [item["type"] for item in kept] == [item.get("type", "message") for item in CONVERSATION]
    for item in kept:
        checked(ResponseItem, item)
    assert anonymous(kept[0]) == FURTHER
    assert kept[2]["namespace"] == "n"
    assert anonymous(kept[9]) == {**anonymous(FOUND), "status": "completed"}
    # Sent back as they are kept, and continued by the response's id, they are the same chat.
    again = {"role": "user", "content": "again"}
    seen = []
    for body in ({"input": [*kept, *first["output"], again]}, {"previous_response_id": first["id"], "input": [again]}):
        place.whole(body)
        seen.append((place.messages, place.bench.prompts.requests[-1].tools))
    assert seen[0] == seen[1]
    assert seen[0][1]


@pytest.mark.parametrize("kind", sorted(HOSTED_ITEMS))
def test_steps_of_hosted_tools_are_kept_and_left_out(kind: str) -> None:
    place = Place()
    # Not what an image of ours would be.
    step = {"type": kind, "output": [{"type": "input_image", "image_url": "kept:0"}], "status": "completed"}
    response = place.whole({"input": [step, USER]})
    assert place.messages == [USER]
    kept = place.ask("GET", f"{PATH}/{response['id']}/input_items", query="order=asc").json()["data"]
    assert anonymous(kept[0]) == step
    place.whole({"previous_response_id": response["id"], "input": [{"type": "item_reference", "id": kept[0]["id"]}]})
    assert [message["role"] for message in place.messages] == ["user", "assistant"]


def test_a_search_of_the_service_is_left_out() -> None:
    place = Place()
    server = {"execution": "server", "call_id": None, "status": "completed"}
    place.whole({"input": [{**SEARCH, **server}, {**FOUND, **server}, USER]})
    assert place.messages == [USER]
    assert not place.bench.prompts.requests[-1].tools


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([output("custom_tool_call_output", "c9")], "input[0].call_id"),
        ([SHELL, {"type": "local_shell_call_output", "id": "c9", "output": "x"}], "input[1].id"),
        ([{**FOUND, "call_id": "c9"}], "input[0].call_id"),
        ([{**SEARCH, "call_id": None}], "input[0].call_id"),
        ([{**CUSTOM, "input": {}}], "input[0].input"),
        ([{**CUSTOM, "caller": {"type": "program", "caller_id": "x"}}], "input[0].caller"),
        ([{**NAMED, "namespace": ["n"]}], "input[0].namespace"),
        ([{**SHELL, "action": "ls"}], "input[0].action"),
        ([{**FURTHER, "role": "user"}], "input[0].role"),
        ([{**FURTHER, "tools": [namespace("n"), namespace("n")]}], "input[0].tools[1].name"),
        ([SEARCH, {**FOUND, "tools": [function("a b")]}], "input[1].tools[0].name"),
    ],
)
def test_refused_before_anything_is_generated(items: list[dict[str, Any]], param: str) -> None:
    assert Place().refused(input=[*items, USER])["param"] == param


def test_a_bad_output_leaves_the_stored_conversation_as_it_is() -> None:
    place = Place()
    first = place.whole({"input": [FURTHER, USER]})
    bad = {"previous_response_id": first["id"], "input": [output("custom_tool_call_output", "c9")]}
    assert place.ask("POST", PATH, bad).status == 400
    taken = {**bad, "input": [USER], "tools": [function("n__f")]}
    reply = place.ask("POST", PATH, taken)
    assert (reply.status, reply.error["param"]) == (400, "previous_response_id")
    place.whole({"previous_response_id": first["id"], "input": [USER]})
    assert [message["role"] for message in place.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize("levels", [100, 800, 840, 880, 920, 960, 1200])
def test_items_that_are_nested_deeply_are_kept_or_refused(levels: int) -> None:
    deep = b'{"items":' * levels + b"{}" + b"}" * levels
    for item in (
        {**SEARCH, "arguments": "DEEP"},
        {**SHELL, "action": "DEEP"},
        {"type": "web_search_call", "action": "DEEP"},
        {**FURTHER, "tools": [function("f", parameters="DEEP")]},
    ):
        body = msgspec.json.encode({"input": [item, USER]}).replace(b'"DEEP"', deep)
        place = Place()

        def answer(engine: Any = place.bench.engine) -> None:
            if engine.requests:
                engine.deliver(0, "ok", "stop", stop_token_id=EOS)

        reply = place.ask("POST", PATH, body, feed=answer)
        assert reply.status == 400 if levels > 1000 else reply.status in (200, 400)
        if reply.status == 200:
            path = f"{PATH}/{reply.json()['id']}/input_items"
            assert place.ask("GET", path).status == 200
