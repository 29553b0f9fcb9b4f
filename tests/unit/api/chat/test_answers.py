"""Answers of chat completions and completions, whole and streamed, to the last field."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.chat.chunks import ChunkEncoder, Envelope
from openai_bls.core.usage import Usage
from tests.unit.api.http_support import asked
from tests.unit.core_support import EOS, Bench, events, usage_body

USER = {"role": "user", "content": "hi"}
CHAT = ("/v1/chat/completions", {"messages": [USER]}, "chatcmpl-")
COMPLETION = ("/v1/completions", {"prompt": "hi"}, "cmpl-")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def answered(kind: tuple[str, dict[str, Any], str], *texts: str, reason: str = "stop", **fields: Any) -> Any:
    """The answer, or the chunks of a stream, for which the engine writes `texts`; without what is made up anew."""
    path, body, prefix = kind
    bench = Bench()

    def feed() -> None:
        for text in texts[:-1]:
            bench.engine.deliver(0, text)
        bench.engine.deliver(0, texts[-1], reason, stop_token_id=EOS if reason == "stop" else None)

    result = asked(bench, path, {**body, **fields}, feed)
    assert result.status == 200
    found = [json.loads(event) for event in events(result.body)[:-1]] if fields.get("stream") else [result.json()]
    assert len({one["id"] for one in found}) == 1
    for one in found:
        assert re.fullmatch(f"{prefix}[0-9a-f]{{32}}", one.pop("id"))
        assert one.pop("created") > 0
        assert one.pop("system_fingerprint") == bench.model.fingerprint
        assert one.pop("model") == "tiny"
    return found if fields.get("stream") else found[0]


def choice(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": 0, **fields, "logprobs": None, "finish_reason": finish_reason}


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_chat(usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = answered(CHAT, "a", "b", stream=True, **options)
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]
    choices = [*(choice(delta=delta) for delta in deltas), choice("stop", delta={})]
    head = {"object": "chat.completion.chunk"}
    null = {"usage": None} if usage else {}
    last = [{**head, "choices": [], "usage": usage_body(2, 3)}] if usage else []
    assert chunks == [*({**head, "choices": [one], **null} for one in choices), *last]


def test_a_streamed_completion() -> None:
    chunks = answered(COMPLETION, "a", "b", reason="length", stream=True)
    choices = [choice(text="a"), choice(text="b"), choice("length", text="")]
    assert chunks == [{"object": "text_completion", "choices": [one]} for one in choices]


def test_tool_calls_of_a_stream() -> None:
    *chunks, last = answered(CHAT, "ok", CALL[:40], CALL[40:], stream=True, tools=[TOOL])
    (call_id,) = {
        call["id"] for one in chunks for call in one["choices"][0]["delta"].get("tool_calls", ()) if "id" in call
    }
    deltas = [one["choices"][0]["delta"] for one in chunks]
    begun = {"index": 0, "id": call_id, "type": "function", "function": {"name": "f", "arguments": ""}}
    assert deltas[:3] == [{"role": "assistant", "content": ""}, {"content": "ok"}, {"tool_calls": [begun]}]
    pieces = [delta["tool_calls"][0] for delta in deltas[3:]]
    assert [set(piece) for piece in pieces] == [{"index", "function"}] * len(pieces)
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a": 1}'
    assert last["choices"] == [choice("tool_calls", delta={})]


def test_whole_answers() -> None:
    message = {"role": "assistant", "content": "hi", "refusal": None}
    whole = {"object": "chat.completion", "usage": usage_body(2, 3)}
    assert answered(CHAT, "hi") == {**whole, "choices": [choice("stop", message=message)]}
    assert answered(CHAT, "")["choices"] == [choice("stop", message={**message, "content": ""})]
    (called,) = answered(CHAT, CALL, tools=[TOOL])["choices"]
    (call,) = called["message"].pop("tool_calls")
    assert called == choice("tool_calls", message={**message, "content": None})
    assert {**call, "id": ""} == {"id": "", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert answered(COMPLETION, "hi", reason="length") == {
        "object": "text_completion",
        "choices": [choice("length", text="hi")],
        "usage": usage_body(2, 2),
    }


@given(st.text(alphabet=st.characters(codec="utf-8")), st.integers(0, 2), st.booleans(), st.booleans())
@settings(max_examples=50)
def test_any_text_is_one_line(text: str, index: int, chat: bool, usage_null: bool) -> None:
    envelope = Envelope(chat=chat, id="id-1", created=5, model='m"x', fingerprint="fp", choices=3)
    bare, framed = (ChunkEncoder(envelope, usage_null=usage_null, sse=sse) for sse in (False, True))
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = {"id": "id-1", "object": kind, "created": 5, "model": 'm"x', "system_fingerprint": "fp"}
    said = {"delta": {"content": text}} if chat else {"text": text}
    expected = {**head, "choices": [{**choice(**said), "index": index}]}
    for usage in (None, Usage.of(1, 2)):
        chunk = bare.text(index, text, usage)
        told = {"usage": usage_body(1, 2)} if usage is not None else {"usage": None} if usage_null else {}
        assert json.loads(chunk) == {**expected, **told}
        assert not {b"\n", b"\r"} & {chunk[at : at + 1] for at in range(len(chunk))}
        assert framed.text(index, text, usage) == b"data: " + chunk + b"\n\n"
