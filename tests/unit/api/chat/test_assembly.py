from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.api.chat import model_answers
from openai_bls.api.chat.assembly import assemble

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
WHOLE: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "sources": ["a", {"b": 1}],
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "tool_calls": [CALL]}, "finish_reason": "tool_calls"},
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def said(index: int, **delta: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": index, "delta": delta}]}


def test_a_whole_answer_comes_back_from_its_chunks() -> None:
    chunks = [json.loads(text) for text in model_answers.chunks("m", WHOLE, include_usage=True)]
    answer = assemble(chunks)
    # The role's chunk has an empty content.
    assert answer["choices"][1]["message"].pop("content") == ""
    assert answer == WHOLE


def test_pieces_are_joined() -> None:
    calls = [
        [{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}],
        [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}],
        [{"index": 1, "function": {"arguments": "[]"}}],
        [{"index": 0, "function": {"arguments": "}"}}],
    ]
    chunks = [
        said(0, role="assistant", content="a"),
        said(1, reasoning="x"),
        said(0, content="b"),
        said(1, reasoning="y"),
    ]
    first, second = assemble([*chunks, *(said(1, tool_calls=piece) for piece in calls)])["choices"]
    assert first == {"message": {"role": "assistant", "content": "ab"}, "index": 0}
    assert second["message"] == {
        "reasoning": "xy",
        "tool_calls": [
            {"id": "b", "function": {"name": "g", "arguments": "[]"}},
            {"id": "a", "function": {"name": "f", "arguments": "{}"}},
        ],
    }


@pytest.mark.parametrize("odd", [None, 1, "text", [], {}, [None, 1, "text", []], {"index": []}, [{"index": {}}]])
def test_whatever_a_model_puts_into_its_chunks(odd: Any) -> None:
    values: list[Any] = [odd, "a", [{}], {}]
    deltas = [{name: value} for name in ("content", "tool_calls", "function", "role") for value in values]
    chunks = [{"choices": [odd, {"delta": odd, "index": odd}, {"delta": delta}]} for delta in deltas]
    assert assemble(chunks)["object"] == "chat.completion"
