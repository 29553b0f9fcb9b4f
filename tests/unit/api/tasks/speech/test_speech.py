"""Texts as audio, by a Triton model whose answers the test makes."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.common.lifted import Lifted
from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.api.tasks.speech.wav import pcm
from openai_bls.transport.model_calls import Array, Arrays, ModelCallError
from tests.unit.api.guard_support import Place
from tests.unit.api.http_support import Leaving, application, asked, over_socket, refused
from tests.unit.core_support import Answered, Bench, FakeSink, ask, events, request_context, until
from tests.unit.pipeline.task_models.task_support import model, tensor

PATH = "/v1/audio/speech"
RATE = 24000
SAMPLES = np.array([0, 1, -1, 32767, -32768], np.int16)
TEXT = [tensor("text")]
OPTIONAL = [tensor(name, optional=True) for name in ("voice", "instructions", "format")]
ALL = [*TEXT, *OPTIONAL[:2], tensor("speed", "TYPE_FP32", optional=True)]
Says = Callable[[Mapping[str, Array]], Any]


def pieces_of(*pieces: Array) -> Says:
    return lambda _: [{"audio": piece} for piece in pieces]


def bench_of(whole: Any = SAMPLES, pieces: Says | None = None, *, bench: Bench | None = None, **changes: Any) -> Bench:
    """A service with a model that speaks, one that streams if `pieces` are given."""
    bench = bench or Bench()
    decoupled = {"model_transaction_policy": {"decoupled": True}} if pieces is not None else {}
    bench.service.models.tasks.replace([model("speech", "voice", **{"max_batch_size": 0, **decoupled, **changes})])
    bench.model_calls.models["voice"] = lambda _: {"audio": whole}
    if pieces is not None:
        bench.model_calls.streams["voice"] = pieces
    return bench


def spoken(bench: Bench, **body: Any) -> Answered:
    found = asked(bench, PATH, {"input": "Hello.", **body})
    assert found.status == 200, found.body
    return found


def sent(bench: Bench) -> dict[str, Any]:
    ((_, inputs),) = bench.model_calls.called
    return {name: array.item() for name, array in inputs.items()}


def samples_of(file: bytes, *, streamed: bool = False) -> list[int]:
    """Those of a WAV file, as the standard library reads it."""
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (RATE, 1, 2)
        if not streamed:
            assert reader.getnframes() == (len(file) - 44) // 2
        return [int(value) for value in np.frombuffer(reader.readframes(len(file)), "<i2")]


def audio_of(answered: Answered) -> bytes:
    """That of events."""
    assert answered.headers["content-type"].startswith("text/event-stream")
    *deltas, done = [json.loads(each) for each in events(answered.body)]
    assert done == {"type": "speech.audio.done", "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}}
    assert {delta["type"] for delta in deltas} <= {"speech.audio.delta"}
    return b"".join(base64.b64decode(delta["audio"], validate=True) for delta in deltas)


arrays = st.lists(st.integers(-32768, 32767), max_size=50).map(lambda row: np.array(row, np.int16))


@settings(deadline=None, max_examples=40)
@given(st.lists(arrays, min_size=1, max_size=5))
def test_pieces_are_the_samples_of_the_model(pieces: list[Array]) -> None:
    whole = np.concatenate(pieces)
    assert samples_of(spoken(bench_of(whole)).body) == whole.tolist()
    assert spoken(bench_of(whole), response_format="pcm").body == whole.tobytes()
    for says in (pieces_of(*pieces), None):
        file = audio_of(spoken(bench_of(whole, says), stream_format="sse"))
        assert samples_of(file, streamed=True) == whole.tolist()
        raw = spoken(bench_of(whole, says), response_format="pcm", stream_format="sse")
        assert audio_of(raw) == whole.tobytes()
    streamed = spoken(bench_of(whole, pieces_of(*pieces)))
    assert (streamed.headers["content-type"], "content-length" in streamed.headers) == ("audio/wav", False)
    assert samples_of(streamed.body, streamed=True) == whole.tolist()


@pytest.mark.parametrize("pieces", [None, pieces_of(SAMPLES[None])])
def test_a_model_with_batches_gets_one_text(pieces: Says | None) -> None:
    bench = bench_of(SAMPLES[None], pieces, max_batch_size=8)
    assert spoken(bench, response_format="pcm").body == SAMPLES.tobytes()
    assert [inputs["text"].shape for _, inputs in bench.model_calls.called] == [(1, 1)]


@given(st.lists(st.floats(-4, 4, width=32), max_size=20))
def test_floats_are_cut_at_one(values: list[float]) -> None:
    found = np.frombuffer(pcm(np.array(values, np.float32)), "<i2").astype(int)
    assert np.abs(found - np.clip(values, -1, 1) * 32767).max(initial=0) <= 1


def test_headers_and_the_record() -> None:
    bench = bench_of()
    found = spoken(bench, response_format="pcm", voice="alloy", instructions="", speed=1)
    assert (found.headers["content-type"], found.headers["content-length"]) == ("audio/pcm;rate=24000", "10")
    # The SDK must name a voice.
    assert found.headers["openai-bls-ignored"] == "voice"
    assert sent(bench) == {"text": b"Hello."}
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("audio.speech", "voice", "done")


def test_what_the_model_takes() -> None:
    bench = bench_of(input=ALL, openai_voices="ann, bob")
    found = spoken(bench, voice={"id": "bob"}, instructions="slowly", speed=0.5, model="voice")
    assert "openai-bls-ignored" not in found.headers
    assert sent(bench) == {"text": b"Hello.", "voice": b"bob", "instructions": b"slowly", "speed": 0.5}
    bench = bench_of(input=ALL, openai_voices="ann, bob")
    spoken(bench)
    assert sent(bench) == {"text": b"Hello.", "voice": b"ann", "instructions": b"", "speed": 1.0}
    bench = bench_of(input=ALL)
    spoken(bench, voice="anybody")
    assert sent(bench)["voice"] == b"anybody"


def test_a_model_that_encodes() -> None:
    changes: dict[str, Any] = {"output": [tensor("audio")], "openai_sample_rate": None, "openai_formats": "mp3,flac"}
    file = np.array([b"ID3\x00\xff"], object)
    bench = bench_of(file, input=[*TEXT, OPTIONAL[2]], **changes)
    found = spoken(bench)
    assert (found.body, found.headers["content-type"]) == (b"ID3\x00\xff", "audio/mpeg")
    assert sent(bench)["format"] == b"mp3"
    bench = bench_of(None, pieces_of(file, file), input=[*TEXT, OPTIONAL[2]], **changes)
    found = spoken(bench, response_format="flac")
    assert (found.body, found.headers["content-type"]) == (b"ID3\x00\xff" * 2, "audio/flac")
    assert sent(bench)["format"] == b"flac"
    assert refused(bench, PATH, {"input": "x", "response_format": "wav"})[:2] == (400, "response_format")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": " \n\t"}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["x"]}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"input": "x", "response_format": "mp3"}, "response_format"),
        ({"input": "x", "response_format": "ogg"}, "response_format"),
        ({"input": "x", "speed": 0.2}, "speed"),
        ({"input": "x", "speed": 4.5}, "speed"),
        ({"input": "x", "speed": 2}, "speed"),
        ({"input": "x", "instructions": "slowly"}, "instructions"),
        ({"input": "x", "stream_format": "ogg"}, "stream_format"),
        ({"input": "x", "voice": 7}, "voice"),
        ({"input": "x", "voice": {"name": "x"}}, "voice.name"),
        ({"input": "x", "stream": True}, "stream"),
    ],
)
def test_refusals(body: dict[str, Any], param: str) -> None:
    bench = bench_of()
    assert refused(bench, PATH, body)[:2] == (400, param)
    assert bench.model_calls.called == []


def test_a_voice_that_the_model_lacks() -> None:
    bench = bench_of(input=ALL, openai_voices="ann,bob")
    assert refused(bench, PATH, {"input": "x", "voice": "alloy"})[:2] == (400, "voice")


def test_models_of_other_tasks() -> None:
    bench = bench_of()
    assert refused(bench, PATH, {"input": "x", "model": "tiny"}) == (400, "model", "unsupported_endpoint")
    assert refused(bench, "/v1/embeddings", {"input": "x", "model": "voice"}) == (400, "model", "unsupported_endpoint")
    assert refused(Bench(), PATH, {"input": "x"})[0] == 404


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        (lambda _: [], 502),
        (pieces_of(np.array([1.0], np.float32)), 502),
        (pieces_of(np.array([b"x"], object)), 502),
    ],
)
def test_an_answer_that_cannot_be_passed_on(pieces: Says, status: int, stream_format: str) -> None:
    found = asked(bench_of(None, pieces), PATH, {"input": "x", "stream_format": stream_format})
    assert (found.status, found.json()["error"]["code"]) == (status, "bad_model_answer")


def test_a_model_that_fails() -> None:
    def fail(_: Mapping[str, Array]) -> Iterable[Arrays]:
        raise ModelCallError("the model 'voice': no such word")

    for bench in (bench_of(None, fail), bench_of(None)):
        bench.model_calls.models["voice"] = fail  # type: ignore[assignment]
        found = asked(bench, PATH, {"input": "x"})
        assert (found.status, found.json()["error"]["message"]) == (500, "The model 'voice' failed: no such word")


def failing_late(_: Mapping[str, Array]) -> Iterable[Arrays]:
    yield {"audio": SAMPLES}
    raise ModelCallError("the model 'voice': out of breath")


@pytest.mark.anyio
async def test_a_failure_after_a_piece_is_no_end_of_the_audio() -> None:
    async with over_socket() as (bench, port):
        bench_of(None, failing_late, bench=bench)
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as sdk:
            with pytest.raises(openai.APIConnectionError):
                await sdk.audio.speech.create(input="x", model="voice", voice="x")
            # The connection that was broken off is not used again, and the server goes on.
            bench.model_calls.streams["voice"] = pieces_of(SAMPLES)
            whole = await sdk.audio.speech.create(input="x", model="voice", voice="x")
            assert samples_of(whole.content, streamed=True) == SAMPLES.tolist()
    assert [getattr(record.outcome, "status", record.outcome) for record in bench.records] == [500, "done"]


def test_a_failure_after_an_event_is_an_event() -> None:
    found = asked(bench_of(None, failing_late), PATH, {"input": "x", "stream_format": "sse"})
    first, last = [json.loads(each) for each in events(found.body)]
    assert (first["type"], last["error"]["type"]) == ("speech.audio.delta", "server_error")


@pytest.mark.anyio
async def test_pieces_go_out_as_they_come() -> None:
    """Each before the next is there, and nothing else while it is silent."""
    taken = 0

    async def pieces(_: Mapping[str, Array]) -> AsyncIterator[Arrays]:
        for number in range(3):
            await until(lambda number=number: taken == number)  # type: ignore[misc]
            yield {"audio": SAMPLES + np.int16(number)}

    async with over_socket(keep_alive_interval_s=0.01) as (bench, port):
        bench_of(None, pieces, bench=bench)
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as sdk:
            create = sdk.audio.speech.with_streaming_response.create
            async with create(input="x", model="voice", voice="x", response_format="pcm") as response:
                got = b""
                async for chunk in response.iter_bytes():
                    got += chunk
                    taken = len(got) // SAMPLES.nbytes
        expected = b"".join((SAMPLES + np.int16(number)).tobytes() for number in range(3))
        assert got == expected


@pytest.mark.anyio
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("after_a_piece", [True, False])
async def test_a_client_that_leaves(stream_format: str, after_a_piece: bool) -> None:
    async def endless(_: Mapping[str, Array]) -> AsyncIterator[Arrays]:
        if after_a_piece:
            yield {"audio": SAMPLES}
        await until(lambda: False)

    bench = bench_of(None, endless)
    client = Leaving(application(bench), PATH, {"input": "x", "stream_format": stream_format})
    await until(lambda: client.sent if after_a_piece else bench.model_calls.called)
    await client.leave()
    await until(lambda: bench.records)
    assert (bench.model_calls.closed_streams, bench.records[0].outcome) == (1, "cancelled")
    assert bench.service.in_progress == 0


@pytest.mark.anyio
async def test_a_guard_sees_the_text_and_not_the_audio() -> None:
    place = Place()
    place.guard.before = lambda question: {"request": {**question["request"], "input": "Bye."}}
    bench_of(bench=place.bench)
    found = await place.ask(PATH, {"input": "Hello."}, None)
    assert samples_of(found.body) == SAMPLES.tolist()
    assert place.bench.model_calls.called[1][1]["text"].item() == b"Bye."
    await until(lambda: place.guard.hooks() == ["before", "after"])
    assert place.guard.asked[1]["answer"] is None
    place.guard.before = lambda question: {"error": {"message": "No.", "status": 403}}
    assert (await place.ask(PATH, {"input": "Hello."}, None)).status == 403


@pytest.mark.anyio
async def test_on_tritons_ports() -> None:
    bench = bench_of(None, pieces_of(SAMPLES, SAMPLES))
    entry, sink = TRITON_ENTRIES["audio.speech"], FakeSink(opens_at_once=True)
    body = {"input": "x", "response_format": "pcm"}
    whole = await entry(Lifted.nothing(body))(bench.service, request_context(), sink)
    assert isinstance(whole, bytes)
    assert json.loads(whole) == {
        "audio": base64.b64encode(SAMPLES.tobytes() * 2).decode(),
        "format": "pcm",
        "sample_rate": RATE,
    }
    await entry(Lifted.nothing({**body, "stream_format": "sse"}))(bench.service, request_context(), sink)
    await until(lambda: sink.ended)
    assert [chunk["type"] for chunk in sink.chunks] == ["speech.audio.delta"] * 2 + ["speech.audio.done"]


@pytest.mark.anyio
async def test_a_timeout_outside_the_body() -> None:
    async def hang(_: Mapping[str, Array]) -> Arrays:
        await until(lambda: False)
        raise AssertionError

    bench = bench_of()
    bench.model_calls.models["voice"] = hang
    found = await ask(application(bench), "POST", PATH, {"input": "x"}, [("x-request-timeout", "0.01")])
    assert (found.status, found.json()["error"]["code"]) == (504, "timeout")
