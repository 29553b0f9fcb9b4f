from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.chat.chunks import (
    Answer,
    AnswerMessage,
    ChatChoice,
    ChunkEncoder,
    Envelope,
    FunctionText,
    TextChoice,
    ToolCall,
)
from openai_bls.api.common.encoding import encode, new_id
from openai_bls.core.usage import Usage
from tests.unit.core_support import usage_body

TEXT = st.text(alphabet=st.characters(codec="utf-8"))


def encoder(*, chat: bool = True, usage_null: bool = False, sse: bool = False) -> ChunkEncoder:
    envelope = Envelope(chat=chat, id="id-1", created=5, model='m"x', fingerprint="fp", choices=3)
    return ChunkEncoder(envelope, usage_null=usage_null, sse=sse)


def head(chat: bool) -> dict[str, Any]:
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": "id-1", "object": kind, "created": 5, "model": 'm"x', "system_fingerprint": "fp"}


@given(TEXT, st.integers(0, 2), st.booleans(), st.booleans())
def test_text_chunks(text: str, index: int, chat: bool, usage_null: bool) -> None:
    body = {"delta": {"content": text}} if chat else {"text": text}
    choice = {"index": index, **body, "logprobs": None, "finish_reason": None}
    expected: dict[str, Any] = {**head(chat), "choices": [choice]}
    assert json.loads(encoder(chat=chat, usage_null=usage_null).text(index, text)) == (
        {**expected, "usage": None} if usage_null else expected
    )
    with_usage = encoder(chat=chat, usage_null=usage_null).text(index, text, Usage.of(1, 2))
    usage = usage_body(1, 2)
    assert json.loads(with_usage) == {**expected, "usage": usage}


@given(TEXT, st.booleans())
def test_an_event_is_one_line(text: str, chat: bool) -> None:
    chunks = encoder(chat=chat, sse=True)
    bare = encoder(chat=chat)
    for framed, plain in (
        (chunks.text(0, text), bare.text(0, text)),
        (chunks.text(0, text, Usage.of(1, 1)), bare.text(0, text, Usage.of(1, 1))),
        (chunks.finish(1, "length"), bare.finish(1, "length")),
        (chunks.usage(Usage.of(0, 0)), bare.usage(Usage.of(0, 0))),
    ):
        assert framed == b"data: " + plain + b"\n\n"
        assert b"\n" not in plain
        assert b"\r" not in plain


@pytest.mark.parametrize("usage_null", [False, True])
def test_the_other_chunks(usage_null: bool) -> None:
    chunks = encoder(usage_null=usage_null)
    tail = {"usage": None} if usage_null else {}
    open_end = {"logprobs": None, "finish_reason": None}
    role = {"index": 1, "delta": {"role": "assistant", "content": ""}, **open_end}
    assert json.loads(chunks.role(1)) == {**head(True), "choices": [role], **tail}
    delta: dict[str, Any] = {"index": 0, "delta": {"tool_calls": []}, **open_end}
    assert json.loads(chunks.delta(0, {"tool_calls": []})) == {**head(True), "choices": [delta], **tail}
    last = {"index": 2, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert json.loads(chunks.finish(2, "stop")) == {**head(True), "choices": [last], **tail}
    usage = usage_body(1, 2)
    assert json.loads(chunks.usage(Usage.of(1, 2))) == {**head(True), "choices": [], "usage": usage}


def test_a_whole_answer_has_the_fields_the_spec_requires_and_no_others() -> None:
    message = AnswerMessage("assistant", "hi")
    answer = Answer("i", "chat.completion", 1, "m", [ChatChoice(0, message, None, "stop")], Usage.of(1, 1), "fp")
    body = json.loads(encode(answer))
    assert set(body) == {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    calls = AnswerMessage("assistant", None, tool_calls=[ToolCall("c", "function", FunctionText("f", "{}"))])
    assert json.loads(encode(calls)) == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert json.loads(encode(TextChoice(0, "t", None, "length"))) == {
        "index": 0,
        "text": "t",
        "logprobs": None,
        "finish_reason": "length",
    }


def test_ids_differ() -> None:
    ids = {new_id("cmpl-") for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == len("cmpl-") + 32 and i.startswith("cmpl-") for i in ids)
