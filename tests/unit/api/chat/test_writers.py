from __future__ import annotations

import json
from typing import Any

from openai_bls.api.chat.chunks import ChunkEncoder, Envelope
from openai_bls.api.chat.writers import AnswerWriter, StreamWriter
from openai_bls.api.common.encoding import encode
from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.usage import Usage
from openai_bls.pipeline.generation.sequence import Sequence
from tests.unit.core_support import FakeSink, tiny_detokenizers

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
    detokenizer = tiny_detokenizers().new()
    return [Sequence(i, GenerationRequest(i, [1], 1), detokenizer, writer) for i in range(count)]


def deltas(sink: FakeSink, index: int) -> list[dict[str, Any]]:
    return [c["delta"] for chunk in sink.chunks for c in chunk["choices"] if c["index"] == index]


def test_completions_have_no_role() -> None:
    sink, writer, (first, _) = stream(chat=False)
    writer.open()
    writer.text(first, "a")
    writer.finished(first, "length")
    assert [chunk["choices"][0] for chunk in sink.chunks] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"},
    ]


def test_without_the_option_no_chunk_mentions_usage() -> None:
    sink, writer, (first, _) = stream()
    writer.text(first, "a")
    writer.finished(first, "stop")
    writer.done(USAGE)
    assert all("usage" not in chunk for chunk in sink.chunks)


def test_tool_calls_stream() -> None:
    sink, writer, (first, _) = stream(usage=True)
    writer.tool_call(first, 0, "c1", "f")
    writer.tool_arguments(first, 0, '{"a"')
    writer.tool_arguments(first, 0, ": 1}")
    assert deltas(sink, 0) == [
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    assert {chunk["usage"] for chunk in sink.chunks} == {None}


async def whole(chat: bool, events: Any) -> Any:
    writer = AnswerWriter(envelope(chat=chat), candidates=2, n=2)
    events(writer, *sequences(writer, 2))
    writer.done(USAGE)
    return json.loads(encode(await writer.answer))


async def test_content_is_null_beside_calls_and_empty_without() -> None:
    def events(writer: AnswerWriter, first: Sequence, second: Sequence) -> None:
        writer.tool_call(first, 0, "c1", "f")
        writer.finished(first, "tool_calls")
        writer.finished(second, "stop")

    first, second = (await whole(True, events))["choices"]
    assert first["message"]["content"] is None
    assert second["message"] == {"role": "assistant", "content": "", "refusal": None}


async def test_a_whole_completion() -> None:
    def events(writer: AnswerWriter, first: Sequence, second: Sequence) -> None:
        writer.text(first, "a")
        writer.finished(first, "length")
        writer.finished(second, "stop")

    body = await whole(False, events)
    assert body["object"] == "text_completion"
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [("a", "length"), ("", "stop")]
