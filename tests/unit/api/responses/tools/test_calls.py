"""Calls of namespaces' tools, of custom tools and of the tool search, as they are streamed, answered and kept."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_bls.api.responses import parsing
from openai_bls.api.responses.events import EventWriter
from openai_bls.api.responses.tools.calls import call_item
from openai_bls.api.responses.tools.echo import echo
from openai_bls.api.responses.tools.toolbox import Called
from tests.unit.api.responses.responses_support import THINKS_AND_CALLS, WEATHER, Place, anonymous, call_text
from tests.unit.api.responses.tools.test_toolbox import function, namespace
from tests.unit.core_support import Bench, engine_info

TOOLS = [
    WEATHER,
    namespace("n", function("f"), {"type": "custom", "name": "c"}),
    {"type": "custom", "name": "patch"},
    {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
]
PATCH = '*** Begin Patch\n"a\\b"\té😀'


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Types of the events of one item, repeated ones once."""
    found = [event["type"].removeprefix("response.") for event in events if "output_index" in event]
    return [kind for at, kind in enumerate(found) if at == 0 or kind != found[at - 1]]


@pytest.mark.parametrize(
    ("text", "item", "steps"),
    [
        (
            call_text("n__f", '{"a": 1}'),
            {"type": "function_call", "name": "f", "namespace": "n", "arguments": '{"a": 1}'},
            ["function_call_arguments.delta", "function_call_arguments.done"],
        ),
        (
            call_text("patch", json.dumps({"input": PATCH})),
            {"type": "custom_tool_call", "name": "patch", "input": PATCH},
            ["custom_tool_call_input.delta", "custom_tool_call_input.done"],
        ),
        (
            call_text("n__c", '{"input": "x"}'),
            {"type": "custom_tool_call", "name": "c", "namespace": "n", "input": "x"},
            ["custom_tool_call_input.delta", "custom_tool_call_input.done"],
        ),
        (
            call_text("tool_search", '{"query": "files", "limit": 8}'),
            {"type": "tool_search_call", "execution": "client", "arguments": {"query": "files", "limit": 8}},
            [],
        ),
        # A name that the model has made up.
        (
            call_text("n__g", "{}"),
            {"type": "function_call", "name": "n__g", "arguments": "{}"},
            ["function_call_arguments.delta", "function_call_arguments.done"],
        ),
    ],
)
def test_a_call(text: str, item: dict[str, Any], steps: list[str]) -> None:
    events = Place().streamed({"tools": TOOLS}, list(text))
    assert kinds(events) == ["output_item.added", *steps, "output_item.done"]
    (found,) = events[-1]["response"]["output"]
    assert anonymous(found) == {**item, "status": "completed"}
    assert found["call_id"].startswith("call_")
    (added,) = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    empty = {"arguments": {} if item["type"] == "tool_search_call" else "", "input": ""}
    assert added == {**found, "status": "in_progress", **{name: empty[name] for name in empty if name in found}}
    told = "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
    written = found.get("input", found.get("arguments"))
    assert told == (written if steps else "")
    whole = Place().whole({"tools": TOOLS}, list(text))
    assert anonymous(whole) == anonymous(events[-1]["response"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text('ab"\\\n\té😀{}', max_size=20), cuts=st.lists(st.integers(0, 80), max_size=4))
def test_the_input_of_a_custom_tool_is_any_text(text: str, cuts: list[int]) -> None:
    written = call_text("patch", json.dumps({"input": text}))
    places = sorted({min(cut, len(written)) for cut in cuts})
    pieces = [written[a:b] for a, b in zip([0, *places], [*places, len(written)], strict=True)]
    (item,) = Place().streamed({"tools": TOOLS}, pieces)[-1]["response"]["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", text)


@pytest.mark.parametrize("arguments", ['{"query": ', "[1]", '"x"', '{"a": ' + "[" * 300 + "]" * 300 + "}"])
def test_arguments_of_a_search_that_are_no_object_stay_text(arguments: str) -> None:
    item = call_item(Called("tool_search", "tool_search"), "call_1", 0, EventWriter(None))
    item.open()
    item.add(arguments, [])
    assert item.close("incomplete")["arguments"] == arguments


def test_what_a_response_says_of_its_tools() -> None:
    given_tools = [*TOOLS, {"type": "web_search", "external_web_access": False}]
    choice = {"type": "function", "name": "f", "namespace": "n"}
    response = Place().whole({"tools": given_tools, "tool_choice": choice}, [call_text("n__f", "{}")])
    shown = response["tools"]
    assert [tool["type"] for tool in shown] == ["function", "namespace", "custom", "tool_search"]
    assert [tool["name"] for tool in shown[1]["tools"]] == ["f", "c"]
    assert shown[2]["format"] == {"type": "text"}
    assert response["tool_choice"] == choice


@pytest.mark.parametrize(("count", "on_loop"), [(3, True), (400, False)])
def test_many_tools_are_shown_without_a_stop_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, count: int, on_loop: bool
) -> None:
    """What a response shows of them is made where the body is parsed: in a thread, if it is large."""
    places: list[bool] = []

    def shown(tools: Any) -> Any:
        places.append(threading.current_thread() is threading.main_thread())
        return echo(tools)

    monkeypatch.setattr(parsing, "echo", shown)
    bench = Bench(engine_info(max_model_len=100_000), formats=THINKS_AND_CALLS)
    response = Place(bench).whole({"tools": [function(f"f{number}") for number in range(count)]}, ["ok"])
    assert [tool["name"] for tool in response["tools"]] == [f"f{number}" for number in range(count)]
    assert places == [on_loop]
