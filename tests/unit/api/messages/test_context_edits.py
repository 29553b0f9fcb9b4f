"""`context_management`: what its edits clear, and what the answer says of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.messages.context_edits import CLEARED, clear, parsed_edits
from openai_bls.api.messages.context_schema import ContextManagement
from openai_bls.api.messages.schema import Message
from tests.unit.api.http_support import asked
from tests.unit.api.messages.messages_support import WEATHER, body, converted, events_of, field_at_fault
from tests.unit.core_support import Bench

THINKING, TOOLS = "clear_thinking_20251015", "clear_tool_uses_20250919"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
KEEP_ALL = {"edits": [{"type": THINKING, "keep": "all"}]}


def edits(*given: dict[str, Any]) -> dict[str, Any]:
    return {"edits": [*given]}


def thinking_turns(value: int) -> dict[str, Any]:
    return {"type": THINKING, "keep": {"type": "thinking_turns", "value": value}}


def tool_uses(keep: int, **fields: Any) -> dict[str, Any]:
    trigger = {"type": "tool_uses", "value": 0}
    return {"type": TOOLS, "trigger": trigger, "keep": {"type": "tool_uses", "value": keep}, **fields}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def thought(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": "s"}


def call(at: int, name: str = "get_weather") -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": {"city": f"city {at}"}}


def result(at: int, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": f"result {at} " + "long " * 20, **fields}


def cleared(messages: list[dict[str, Any]], edit: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    (parsed,) = parsed_edits(msgspec.convert(edits(edit), ContextManagement))
    found = clear(parsed, msgspec.convert(messages, list[Message]))
    return [{"role": message.role, "content": message.content} for message in found.messages], found.number


LOOP = [
    user(text("Q1")),
    assistant(thought("t1"), call(1)),
    user(result(1), text("a reminder")),
    assistant(thought("t2"), text("A1")),
    user(text("Q2")),
    assistant(thought("t3"), call(2), call(3, "search")),
    user(result(2), result(3, is_error=True)),
    assistant(text("A2")),
    {"role": "user", "content": "Q3"},
]


@pytest.mark.parametrize(
    ("edit", "left", "count"),
    [
        # A turn goes on over the results of its tools.
        ({"type": THINKING}, ["t3"], 1),
        (thinking_turns(1), ["t3"], 1),
        (thinking_turns(2), ["t1", "t2", "t3"], 0),
        ({"type": THINKING, "keep": "all"}, ["t1", "t2", "t3"], 0),
        ({"type": THINKING, "keep": {"type": "all"}}, ["t1", "t2", "t3"], 0),
    ],
)
def test_thinking(edit: dict[str, Any], left: list[str], count: int) -> None:
    messages, found = cleared(LOOP, edit)
    blocks = [block for message in messages for block in message["content"] if isinstance(block, dict)]
    assert [block["thinking"] for block in blocks if block["type"] == "thinking"] == left
    assert found == count
    assert [block for block in blocks if block["type"] != "thinking"] == [
        block for message in LOOP[:-1] for block in message["content"] if block["type"] != "thinking"
    ]


@pytest.mark.parametrize(
    ("edit", "results", "inputs"),
    [
        (tool_uses(0), {1, 2, 3}, set()),
        (tool_uses(1), {1, 2}, set()),
        (tool_uses(2), {1}, set()),
        (tool_uses(3), set(), set()),
        (tool_uses(0, exclude_tools=["search", "unknown"]), {1, 2}, set()),
        (tool_uses(1, clear_tool_inputs=True), {1, 2}, {1, 2}),
        (tool_uses(0, clear_tool_inputs=["search"]), {1, 2, 3}, {3}),
        (tool_uses(0, clear_tool_inputs=False), {1, 2, 3}, set()),
        (tool_uses(0, trigger={"type": "tool_uses", "value": 2}), {1, 2, 3}, set()),
        (tool_uses(0, trigger={"type": "tool_uses", "value": 3}), set(), set()),
    ],
)
def test_tool_uses(edit: dict[str, Any], results: set[int], inputs: set[int]) -> None:
    messages, count = cleared(LOOP, edit)
    expected = json.loads(json.dumps(LOOP))
    for block in (block for message in expected[:-1] for block in message["content"]):
        at = int((block.get("tool_use_id") or block.get("id") or "_0").partition("_")[2])
        if block["type"] == "tool_result" and at in results:
            block["content"] = CLEARED
        if block["type"] == "tool_use" and at in inputs:
            block["input"] = {}
    assert messages == expected
    assert count == len(results)


TURNS = st.lists(
    st.one_of(
        st.just(user(text("Q"))),
        st.just(assistant(text("A"))),
        st.just(assistant(thought("t"))),
        st.integers(0, 5).map(lambda at: assistant(thought("t"), call(at))),
        st.integers(0, 5).map(lambda at: user(result(at))),
        st.just({"role": "user", "content": "Q"}),
    ),
    max_size=12,
)


@given(messages=TURNS, keep=st.integers(0, 4), forget=st.booleans(), turns=st.integers(1, 3))
def test_what_is_left_is_a_conversation_and_has_nothing_more_to_clear(
    messages: list[dict[str, Any]], keep: int, forget: bool, turns: int
) -> None:
    for edit in (tool_uses(keep, clear_tool_inputs=forget), thinking_turns(turns)):
        found, count = cleared(messages, edit)
        assert [message["role"] for message in found] == [message["role"] for message in messages]
        assert (found == messages) or count
        converted(messages=[*found, user(text("end"))])
        assert cleared(found, edit)[0] == found


@pytest.mark.parametrize(
    ("management", "place"),
    [
        (edits({"type": "compact_20260112"}), "context_management.edits.0.type"),
        (edits({"type": "x" * 1000}), "context_management.edits.0.type"),
        (edits({"type": 7}), "context_management.edits.0.type"),
        (edits({}), "context_management.edits.0.type"),
        (edits(thinking_turns(1), thinking_turns(2)), "context_management.edits.1"),
        (edits(thinking_turns(0)), "context_management.edits.0.keep.value"),
        (edits({"type": THINKING, "keep": "most"}), "context_management.edits.0.keep"),
        (edits({"type": THINKING, "what": 1}), "context_management.edits.0.what"),
        (edits({"type": TOOLS, "keep": {"type": "all"}}), "context_management.edits.0.keep.type"),
        (edits({"type": TOOLS, "trigger": {"type": "tool_uses", "value": -1}}),
         "context_management.edits.0.trigger.value"),
        ({"edits": {}}, "context_management.edits"),
        ({"edits": [1]}, "context_management.edits.0"),
        ({"edit": []}, "context_management.edit"),
        ([], "context_management"),
    ],
)  # fmt: skip
def test_refused(management: Any, place: str) -> None:
    assert field_at_fault(context_management=management) == place


def test_a_refusal_names_what_there_is() -> None:
    bench = Bench()
    answered = asked(bench, MESSAGES, body(context_management=edits({"type": "compact_20260112"})))
    message = answered.json()["error"]["message"]
    assert answered.status == 400
    assert THINKING in message
    assert TOOLS in message


FIELDS: dict[str, Any] = {"messages": LOOP, "tools": [WEATHER]}


def answers(management: Any) -> tuple[Bench, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The bench, a whole message, the last event but one of a stream, and the count of tokens."""
    bench = Bench()
    fields = {**FIELDS, "context_management": management}

    def feed() -> None:
        bench.engine.deliver(len(bench.engine.requests) - 1, "ok", "length")

    whole = asked(bench, MESSAGES, body(**fields), feed)
    streaming = Bench()
    stream = asked(
        streaming, MESSAGES, body(**fields, stream=True), lambda: streaming.engine.deliver(0, "ok", "length")
    )
    counted = asked(Bench(), COUNT, body(**fields, max_tokens=None))
    return bench, whole.json(), events_of(stream)[-2], counted.json()


def test_edits_are_told() -> None:
    _, before, _, _ = answers(None)
    assert "context_management" not in before
    bench, whole, delta, counted = answers(edits(thinking_turns(1), tool_uses(1)))
    original, left = before["usage"]["input_tokens"], whole["usage"]["input_tokens"]
    applied = whole["context_management"]["applied_edits"]
    assert [{**edit, "cleared_input_tokens": 0} for edit in applied] == [
        {"type": THINKING, "cleared_thinking_turns": 1, "cleared_input_tokens": 0},
        {"type": TOOLS, "cleared_tool_uses": 2, "cleared_input_tokens": 0},
    ]
    assert sum(edit["cleared_input_tokens"] for edit in applied) == original - left > 0
    assert delta["context_management"] == whole["context_management"]
    assert counted == {"input_tokens": left, "context_management": {"original_input_tokens": original}}
    # Before, after each edit, and for the answer itself.
    assert len(bench.prompts.requests) == 4
    assert len(bench.engine.requests) == 1


@pytest.mark.parametrize(
    "management",
    [
        KEEP_ALL,
        {},
        edits(),
        edits(thinking_turns(5)),
        edits({"type": TOOLS}),
        edits(tool_uses(0, trigger={"type": "input_tokens", "value": 100_000})),
        edits(tool_uses(0, clear_at_least={"type": "input_tokens", "value": 100_000})),
    ],
)
def test_edits_that_clear_nothing(management: Any) -> None:
    _, before, _, _ = answers(None)
    _, whole, delta, counted = answers(management)
    assert whole["context_management"] == delta["context_management"] == {"applied_edits": []}
    assert whole["usage"] == before["usage"]
    tokens = before["usage"]["input_tokens"]
    assert counted == {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


@pytest.mark.parametrize(("more", "applied"), [(0, 0), (-1, 1)])
def test_a_trigger_is_what_the_prompt_must_exceed(more: int, applied: int) -> None:
    _, before, _, _ = answers(None)
    value = before["usage"]["input_tokens"] + more
    _, whole, _, _ = answers(edits(tool_uses(0, trigger={"type": "input_tokens", "value": value})))
    assert len(whole["context_management"]["applied_edits"]) == applied


def test_prompts_are_counted_only_where_there_is_something_to_clear() -> None:
    bench, _, _, _ = answers(KEEP_ALL)
    assert len(bench.prompts.requests) == 1


def test_a_server_that_is_shutting_down_counts_nothing() -> None:
    bench = Bench()
    bench.service.draining = True
    assert asked(bench, MESSAGES, body(**FIELDS, context_management=edits(tool_uses(0)))).status == 529
    assert bench.prompts.requests == []
