"""Chat models behind /v1/chat/completions and Triton's endpoints, in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from openai_bls.api.chat import model_serving
from openai_bls.api.common.events import unread
from openai_bls.api.common.lifted import Lifted
from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.core.errors import ApiError, InvalidRequestError
from openai_bls.core.usage import Usage
from openai_bls.transport.model_calls import Arrays, ModelCallError
from tests.unit.api.chat.chat_model_support import (
    ANSWER,
    BODY,
    PATH,
    STREAM,
    USAGE,
    USER,
    bench_of,
    chunk,
    error_of,
    sent_to_model,
    streamed,
)
from tests.unit.api.guard_support import as_response
from tests.unit.api.http_support import application, asked
from tests.unit.core_support import Bench, FakeSink, ask, request_context, until
from tests.unit.pipeline.task_models.task_support import model


def test_a_whole_answer_is_the_models_own() -> None:
    whole = b'{ "choices": [{"finish_reason": "stop"}], "retrieved": [1.50], "usage": {"prompt_tokens": 3} }'
    bench = bench_of(whole)
    answered = asked(bench, PATH, {**BODY, "anything": {"deep": [1, None]}, "temperature": "hot"})
    assert (answered.status, answered.body) == (200, whole)
    assert answered.headers["content-type"] == "application/json"
    assert sent_to_model(bench) == {**BODY, "anything": {"deep": [1, None]}, "temperature": "hot", "stream": False}
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("chat.completions", "rag", "done")
    assert (record.usage, record.finish_reasons, record.first_token_at) == (Usage.of(3, 0), ["stop"], None)
    assert bench.busy == [1, 0]


def test_a_request_that_an_engine_could_answer() -> None:
    """Known fields alone, which take another way in."""
    bench = bench_of(ANSWER)
    assert asked(bench, PATH, BODY).json() == ANSWER
    assert sent_to_model(bench) == {**BODY, "stream": False}
    assert bench.engine.requests == []


def test_a_model_that_streams() -> None:
    said = [chunk("Pa"), chunk("ris", "stop", retrieved=["a"]), {"choices": [], "usage": USAGE}]
    bench = bench_of(chunks=lambda _: [as_response(each) for each in said])
    assert streamed(asked(bench, PATH, {**STREAM, "stream_options": {"include_usage": True}})) == said
    assert sent_to_model(bench) == {**STREAM, "stream_options": {"include_usage": True}}
    (record,) = bench.records
    assert (record.outcome, record.usage, record.finish_reasons) == ("done", Usage.of(3, 2), ["stop"])
    assert record.first_token_at is not None
    assert record.began_at <= record.first_token_at <= record.ended_at
    assert bench.model_calls.closed_streams == 1


def test_a_streaming_model_that_is_asked_for_a_whole_answer() -> None:
    bench = bench_of(chunks=lambda _: [as_response(ANSWER)])
    assert asked(bench, PATH, {**BODY, "stream": None}).json() == ANSWER
    assert sent_to_model(bench)["stream"] is False


def test_a_model_that_answers_once_is_asked_to_stream() -> None:
    bench = bench_of(ANSWER)
    found = streamed(asked(bench, PATH, {**STREAM, "stream_options": {"include_usage": True}, "x": 1}))
    assert sent_to_model(bench) == {**BODY, "x": 1, "stream": False}
    assert [each["choices"][0]["delta"] for each in found[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "Paris"},
        {},
    ]
    assert (found[-1]["choices"], found[-1]["usage"]) == ([], USAGE)
    (record,) = bench.records
    assert (record.usage, record.finish_reasons) == (Usage.of(3, 2), ["stop"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "rag"}, "messages"),
        ({"model": "rag", "messages": []}, "messages"),
        ({"model": "rag", "messages": "hi"}, "messages"),
        ({"model": "rag", "messages": [{"content": "hi"}]}, "messages[0].role"),
        ({**BODY, "stream": "yes"}, "stream"),
        ({**BODY, "stream_options": {}}, "stream_options"),
        ({**STREAM, "stream_options": {"include_usage": 7}}, "stream_options.include_usage"),
        (b'{"model": "rag", ', None),
        (b'["rag"]', None),
        # Engines come first and refuse what they do not know.
        ({"messages": [USER], "anything": 1}, "anything"),
        ({**BODY, "model": 7}, "model"),
        ({**BODY, "model": "tiny", "anything": 1}, "anything"),
        ({**BODY, "model": "vec"}, "model"),
    ],
)
def test_bad_requests_never_reach_the_model(body: Any, param: str | None) -> None:
    for name in ("rag", "tiny") if "tiny" in str(body) else ("rag",):
        bench = bench_of(ANSWER, name=name)
        answered = asked(bench, PATH, body)
        assert (answered.status, answered.json()["error"]["param"]) == (400, param)
        assert bench.model_calls.called == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 4}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
def test_other_endpoints_name_the_right_one(path: str, body: dict[str, Any]) -> None:
    answered = asked(bench_of(ANSWER), path, {**body, "model": "rag"})
    assert answered.status == 400
    assert "/v1/chat/completions" in answered.json()["error"]["message"]


def test_a_model_with_a_fault() -> None:
    bench = bench_of(ANSWER)
    bench.service.models.tasks.replace([model("chat", "rag", input=[])])
    for body in (BODY, {**BODY, "anything": 1}, STREAM):
        assert error_of(asked(bench, PATH, body))[0] == 503
    assert bench.model_calls.called == []


def test_errors_of_the_model() -> None:
    error = {"message": "ask something else", "type": "invalid_request_error", "code": "off_topic", "hint": "x"}
    for body in (BODY, STREAM):
        for bench in (bench_of({"error": error}), bench_of(chunks=lambda _: [as_response({"error": error})])):
            answered = asked(bench, PATH, body)
            assert (answered.status, answered.json()) == (400, {"error": {"param": None, **error}})
            (record,) = bench.records
            assert isinstance(record.outcome, ApiError)
            assert record.outcome.status == 400


def test_an_error_in_the_middle_of_a_stream() -> None:
    def chunks(_: Any) -> Any:
        yield as_response(chunk("Pa"))
        raise ModelCallError("the model 'rag': no more")

    first, error = streamed(asked(bench_of(chunks=chunks), PATH, STREAM))
    assert first == chunk("Pa")
    assert "no more" in error["error"]["message"]


async def test_admission_counts_them() -> None:
    bench = bench_of(ANSWER, max_concurrent_requests=1)
    bench.service.count(1)
    for body in (BODY, STREAM):
        assert (await ask(application(bench), "POST", PATH, body)).status == 429
    assert bench.model_calls.called == []


def begun(bench: Bench, sink: FakeSink) -> model_serving.StreamedAnswer:
    rag = bench.service.models.tasks.get("rag")
    assert rag is not None
    return model_serving.StreamedAnswer(
        bench.service, request_context(), model_serving.ChatModelRequest(rag, STREAM), sink
    )


async def endless(_: Any) -> AsyncIterator[Arrays]:
    while True:
        yield as_response(chunk("a"))
        await asyncio.sleep(0)


async def hanging(_: Any) -> AsyncIterator[Arrays]:
    await asyncio.Event().wait()
    yield {}


@pytest.mark.parametrize("chunks", [endless, hanging])
async def test_a_client_that_goes_away(chunks: Any) -> None:
    bench = bench_of(chunks=chunks)
    sink = FakeSink(sse=True)
    answer = begun(bench, sink)
    await until(lambda: bench.model_calls.called)
    answer.cancel()
    await until(lambda: bench.records)
    assert bench.records[0].outcome == "cancelled"
    assert bench.model_calls.closed_streams == 1
    assert (sink.ends, sink.errors, bench.service.in_progress) == (0, [], 0)


async def test_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "MAX_UNREAD_BYTES", 1000)
    bench = bench_of(chunks=endless)

    class Unread(FakeSink):
        @property
        def unread(self) -> int:  # type: ignore[override]
            return len(self.raw)

    for sink, read in ((Unread(sse=True), False), (FakeSink(sse=True), True)):
        answer = begun(bench, sink)
        await until(lambda sink=sink: sink.errors or len(sink.raw) > 100)  # type: ignore[misc]
        answer.cancel()
        if read:
            assert sink.errors == []
        else:
            assert [error.code for error in sink.errors] == ["client_too_slow"]
            assert sum(map(len, sink.raw)) <= 1000


async def test_one_large_chunk_is_no_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "MAX_UNREAD_BYTES", 10)
    bench = bench_of(chunks=lambda _: [as_response(chunk("a" * 100))])
    sink = FakeSink(sse=True)
    begun(bench, sink)
    await until(lambda: sink.ended)
    assert sink.errors == []


def triton(bench: Bench, body: dict[str, Any]) -> tuple[Any, FakeSink]:
    async def main() -> tuple[Any, FakeSink]:
        sink = FakeSink(opens_at_once=True)
        answer = await TRITON_ENTRIES["chat.completions"](Lifted.nothing(body))(bench.service, request_context(), sink)
        if not isinstance(answer, bytes):
            await until(lambda: sink.ended)
        return answer, sink

    return asyncio.run(main())


def test_on_tritons_endpoints() -> None:
    answer, _ = triton(bench_of(ANSWER), {**BODY, "anything": 1})
    assert json.loads(answer) == ANSWER
    said = [chunk("Pa"), chunk("ris", "stop")]
    _, sink = triton(bench_of(chunks=lambda _: map(as_response, said)), STREAM)
    assert sink.chunks == said
    _, sink = triton(bench_of(ANSWER), STREAM)
    assert sink.chunks[1]["choices"][0]["delta"] == {"content": "Paris"}


def test_bad_requests_on_tritons_endpoints() -> None:
    bench = bench_of(ANSWER)
    for body, param in (({"model": "rag"}, "messages"), ({**BODY, "model": "tiny", "anything": 1}, "anything")):
        with pytest.raises(InvalidRequestError) as caught:
            triton(bench, body)
        assert caught.value.param == param
    # Before there is a service.
    with pytest.raises(InvalidRequestError):
        TRITON_ENTRIES["chat.completions"](Lifted.nothing({"messages": [USER], "n": "1"}))


async def test_a_draining_server_answers_what_chat_models_ask_for() -> None:
    """A chat model at work may need the engine; when it has ended, nothing new is taken."""
    working = asyncio.Event()

    async def whole(_: Any) -> Arrays:
        await working.wait()
        return as_response(ANSWER)

    bench = bench_of()
    bench.model_calls.models["rag"] = whole
    app = application(bench)
    outer = asyncio.ensure_future(ask(app, "POST", PATH, BODY))
    await until(lambda: bench.service.chat_models.in_progress)
    bench.service.draining = True
    inner = asyncio.ensure_future(ask(app, "POST", PATH, {"messages": [USER]}))
    await until(lambda: bench.engine.requests)
    bench.engine.deliver(0, "x", "length")
    assert (await inner).status == 200
    working.set()
    assert (await outer).status == 200
    assert (await ask(app, "POST", PATH, BODY)).status == 503
