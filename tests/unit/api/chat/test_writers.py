from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from openai_bls.api.chat.chunks import ChunkEncoder, Envelope
from openai_bls.api.chat.writers import AnswerWriter, StreamWriter
from openai_bls.api.common.encoding import encode
from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.errors import EngineError
from openai_bls.core.usage import Usage
from openai_bls.output.detokenizer.factory import from_tokenizer
from openai_bls.pipeline.sequence import Sequence
from tests.unit.core_support import FakeSink, tiny_tokenizer, usage_body

USAGE = Usage.of(1, 2)


def envelope(*, chat: bool = True, choices: int = 2) -> Envelope:
    return Envelope(chat=chat, id="i", created=1, model="m", fingerprint="f", choices=choices)


def stream(
    *, chat: bool = True, usage: bool = False, choices: int = 2
) -> tuple[FakeSink, StreamWriter, list[Sequence]]:
    sink = FakeSink()
    head = envelope(chat=chat, choices=choices)
    writer = StreamWriter(ChunkEncoder(head, usage_null=usage, sse=False), sink, head, include_usage=usage)
    return sink, writer, sequences(writer, choices)


def sequences(writer: Any, count: int) -> list[Sequence]:
    detokenizer = from_tokenizer(tiny_tokenizer()).new()
    return [Sequence(i, GenerationRequest(i, [1], 1), detokenizer, writer) for i in range(count)]


def deltas(sink: FakeSink, index: int) -> list[dict[str, Any]]:
    return [c["delta"] for chunk in sink.chunks for c in chunk["choices"] if c["index"] == index]


def test_the_role_comes_once_a_choice_and_first() -> None:
    sink, writer, (first, second) = stream()
    writer.text(second, "b")
    writer.text(first, "a")
    writer.text(second, "c")
    writer.finished(first, "stop")
    writer.finished(second, "length")
    writer.done(USAGE)
    role = {"role": "assistant", "content": ""}
    assert deltas(sink, 0) == [role, {"content": "a"}, {}]
    assert deltas(sink, 1) == [role, {"content": "b"}, {"content": "c"}, {}]
    assert (sink.ends, sink.errors) == (1, [])


def test_opening_writes_the_roles_at_once_and_not_again() -> None:
    sink, writer, (first, second) = stream()
    writer.open()
    assert len(sink.raw) == 2
    writer.open()
    writer.text(first, "a")
    writer.finished(second, "stop")
    assert deltas(sink, 0) == [{"role": "assistant", "content": ""}, {"content": "a"}]
    assert deltas(sink, 1) == [{"role": "assistant", "content": ""}, {}]


def test_a_choice_without_text_has_a_role_and_an_end() -> None:
    sink, writer, (first, _) = stream()
    writer.finished(first, "stop")
    assert deltas(sink, 0) == [{"role": "assistant", "content": ""}, {}]
    assert [c["finish_reason"] for chunk in sink.chunks for c in chunk["choices"]] == [None, "stop"]


def test_completions_have_no_role() -> None:
    sink, writer, (first, _) = stream(chat=False)
    writer.open()
    writer.text(first, "a")
    writer.finished(first, "length")
    assert [chunk["choices"][0] for chunk in sink.chunks] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"},
    ]


def test_usage_has_a_chunk_of_its_own_and_is_null_elsewhere() -> None:
    sink, writer, (first, second) = stream(usage=True)
    writer.text(first, "a")
    writer.tool_call(second, 0, "c", "f")
    writer.finished(first, "stop")
    writer.finished(second, "stop")
    writer.done(USAGE)
    *others, last = sink.chunks
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)
    assert last["choices"] == []
    assert last["usage"] == usage_body(1, 2)


def test_without_the_option_no_chunk_mentions_usage() -> None:
    sink, writer, (first, _) = stream()
    writer.text(first, "a")
    writer.finished(first, "stop")
    writer.done(USAGE)
    assert all("usage" not in chunk for chunk in sink.chunks)


def test_usage_up_to_now() -> None:
    sink, writer, (first, _) = stream(usage=True)
    writer.usage = lambda: Usage.of(1, 7)
    writer.text(first, "a")
    assert sink.chunks[-1]["usage"]["completion_tokens"] == 7


def test_tool_calls_stream() -> None:
    sink, writer, (first, _) = stream()
    writer.tool_call(first, 0, "c1", "f")
    writer.tool_arguments(first, 0, '{"a"')
    writer.tool_arguments(first, 0, ": 1}")
    assert deltas(sink, 0) == [
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]


def test_an_error_goes_to_the_sink() -> None:
    sink, writer, (first, _) = stream()
    writer.text(first, "a")
    error = EngineError("x")
    writer.failed(error)
    assert (sink.ends, sink.errors) == (0, [error])


def whole(chat: bool, events: Any) -> Any:
    async def run() -> Any:
        writer = AnswerWriter(envelope(chat=chat), candidates=2, n=2)
        events(writer, *sequences(writer, 2))
        return json.loads(encode(await writer.answer))

    return asyncio.run(run())


def test_a_whole_chat_answer() -> None:
    def events(writer: AnswerWriter, first: Sequence, second: Sequence) -> None:
        writer.text(second, "b")
        writer.text(first, "a")
        writer.tool_call(second, 0, "c1", "f")
        writer.tool_arguments(second, 0, "{")
        writer.tool_call(second, 1, "c2", "g")
        writer.tool_arguments(second, 1, "{}")
        writer.tool_arguments(second, 0, "}")
        writer.text(first, "a")
        writer.finished(second, "tool_calls")
        writer.finished(first, "length")
        writer.done(USAGE)

    body = whole(True, events)
    assert body["object"] == "chat.completion"
    assert body["usage"] == usage_body(1, 2)
    first, second = body["choices"]
    assert first["message"] == {"role": "assistant", "content": "aa", "refusal": None}
    assert first["finish_reason"] == "length"
    calls = second["message"]["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("c1", "f", "{}"),
        ("c2", "g", "{}"),
    ]
    assert (second["index"], second["message"]["content"], second["finish_reason"]) == (1, "b", "tool_calls")


def test_content_is_null_beside_calls_and_empty_without() -> None:
    def events(writer: AnswerWriter, first: Sequence, second: Sequence) -> None:
        writer.tool_call(first, 0, "c1", "f")
        writer.finished(first, "tool_calls")
        writer.finished(second, "stop")
        writer.done(USAGE)

    first, second = whole(True, events)["choices"]
    assert first["message"]["content"] is None
    assert second["message"] == {"role": "assistant", "content": "", "refusal": None}


def test_a_whole_completion() -> None:
    def events(writer: AnswerWriter, first: Sequence, second: Sequence) -> None:
        writer.text(first, "a")
        writer.finished(first, "length")
        writer.finished(second, "stop")
        writer.done(USAGE)

    body = whole(False, events)
    assert body["object"] == "text_completion"
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [("a", "length"), ("", "stop")]


def test_a_failed_answer_raises() -> None:
    with pytest.raises(EngineError, match="x"):
        whole(True, lambda writer, *_: writer.failed(EngineError("x")))


def test_an_answer_that_nobody_awaits_any_more_is_dropped() -> None:
    async def run() -> None:
        writer = AnswerWriter(envelope(choices=1), candidates=1, n=1)
        writer.answer.cancel()
        writer.done(USAGE)
        writer.failed(EngineError("x"))
        assert writer.answer.cancelled()

    asyncio.run(run())
