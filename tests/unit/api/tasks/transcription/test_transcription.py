"""Words of audio, by a Triton model whose answers the test makes."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.common.lifted import Lifted
from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.core.errors import InvalidRequestError
from openai_bls.transport.model_calls import Array, Arrays, InputTooLargeError, ModelCallError
from tests.sounds import BAD_FILES, ENCODED_RATE, ENCODERS, encoded, silence, tone, wav
from tests.unit.api.guard_support import Place
from tests.unit.api.http_support import application, asked, over_socket
from tests.unit.api.tasks.transcription.hearing_support import (
    COUNTS,
    FP32,
    INPUTS,
    LANGUAGE,
    PATH,
    SECOND,
    SEGMENTS,
    TRANSLATIONS,
    WORDS,
    bench_of,
    floats,
    form,
    headers,
    heard,
    refusal,
    said,
    texts,
)
from tests.unit.core_support import Answered, Bench, FakeSink, ask, events, request_context, until
from tests.unit.pipeline.task_models.task_support import tensor

HELLO = said(" Hello & <good> bye.", [(0, 0.5, " Hello & <good>"), (0.5, 61.25, "\n --> bye. ")])
TEXT = " Hello & <good> bye."


def ok(answer: Answered) -> Answered:
    assert answer.status == 200, answer.body
    return answer


def sent(bench: Bench) -> Mapping[str, Array]:
    return bench.model_calls.called[-1][1]


def test_json_and_what_the_model_gets() -> None:
    bench = bench_of(HELLO, input=INPUTS)
    answer = ok(heard(bench, prompt="names", language="de", temperature="0.25", model="ear"))
    assert answer.json() == {"text": TEXT, "usage": {"type": "duration", "seconds": 1.0}}
    inputs = dict(sent(bench))
    audio = inputs.pop("audio")
    assert (audio.dtype.name, audio.size, int(np.count_nonzero(audio))) == ("float32", 16_000, 0)
    assert {name: array.item() for name, array in inputs.items()} == {
        "language": b"de",
        "prompt": b"names",
        "task": b"transcribe",
        "temperature": 0.25,
    }
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("audio.transcriptions", "ear", "done")
    assert (bench.service.audio.budget.held, bench.service.in_progress) == (0, 0)


def test_what_a_request_leaves_out_is_empty() -> None:
    bench = bench_of(HELLO, input=INPUTS, max_batch_size=4)
    bench.model_calls.models["ear"] = lambda _: {name: array[np.newaxis] for name, array in HELLO.items()}
    ok(heard(bench))
    assert {name: array.item() for name, array in sent(bench).items() if name != "audio"} == {
        "language": b"",
        "prompt": b"",
        "task": b"transcribe",
        "temperature": 0.0,
    }
    assert sent(bench)["audio"].shape == (1, 16_000)


@pytest.mark.parametrize("rate", [8000, 16_000, 48_000])
def test_the_rate_of_the_model(rate: int) -> None:
    bench = bench_of(HELLO, openai_sample_rate=str(rate))
    ok(heard(bench, encoded("mp3", tone(1, ENCODED_RATE))))
    assert abs(sent(bench)["audio"].size / rate - 1) < 0.06


@pytest.mark.parametrize("ending", ENCODERS)
def test_every_format_of_the_sdk(ending: str) -> None:
    bench = bench_of(HELLO)
    ok(heard(bench, encoded(ending, tone(1, ENCODED_RATE))))
    assert abs(sent(bench)["audio"].size / 16_000 - 1) < 0.06


def test_channels_bits_and_silence_are_heard() -> None:
    for file in (wav(np.ones((8, 16_000)) / 2), wav(np.ones((1, 16_000)) / 2, bits=24)):
        bench = bench_of(HELLO)
        ok(heard(bench, file))
        assert np.allclose(sent(bench)["audio"], 0.5, atol=1e-4)
    assert ok(heard(bench_of(said("")))).json()["text"] == ""


def test_texts() -> None:
    answer = ok(heard(bench_of(HELLO), response_format="text"))
    assert (answer.body.decode(), answer.headers["content-type"]) == (TEXT, "text/plain; charset=utf-8")
    assert ok(heard(bench_of(HELLO), response_format="srt")).body.decode() == (
        "1\n00:00:00,000 --> 00:00:00,500\nHello & <good>\n\n2\n00:00:00,500 --> 00:01:01,250\n-> bye.\n\n"
    )
    assert ok(heard(bench_of(HELLO), response_format="vtt")).body.decode() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:00.500\nHello &amp; &lt;good>\n\n00:00:00.500 --> 00:01:01.250\n-> bye.\n\n"
    )


times = st.floats(0, 90_000, width=32)
parts = st.lists(st.tuples(times, times, st.text(max_size=20)), max_size=5)


@settings(deadline=None, max_examples=40)
@given(parts)
def test_subtitles_have_one_cue_for_each_segment(segments: list[tuple[float, float, str]]) -> None:
    segments = [(min(one[:2]), max(one[:2]), one[2]) for one in segments]
    bench = bench_of(said("x", segments))
    cue = r"\d\d:[0-5]\d:[0-5]\d{}\d{{3}} --> \d\d:[0-5]\d:[0-5]\d{}\d{{3}}"
    srt = ok(heard(bench, response_format="srt")).body.decode()
    assert len(re.findall(rf"^\d+\n{cue.format(',', ',')}$", srt, re.MULTILINE)) == srt.count("-->") == len(segments)
    vtt = ok(heard(bench, response_format="vtt")).body.decode()
    assert len(re.findall(f"^{cue.format('[.]', '[.]')}$", vtt, re.MULTILINE)) == vtt.count("-->") == len(segments)


def test_verbose_json() -> None:
    answer = ok(heard(bench_of(HELLO), response_format="verbose_json")).json()
    assert {name: answer[name] for name in ("duration", "language", "text", "usage")} == {
        "duration": 1.0,
        "language": "und",
        "text": TEXT,
        "usage": {"type": "duration", "seconds": 1.0},
    }
    assert "words" not in answer
    first, second = answer["segments"]
    assert first.pop("compression_ratio") > 0
    assert first == {
        "id": 0,
        "start": 0.0,
        "end": 0.5,
        "text": " Hello & <good>",
        "temperature": 0.0,
        "avg_logprob": None,
        "no_speech_prob": None,
        "tokens": [],
        "seek": 0,
    }
    assert (second["id"], second["end"]) == (1, 61.25)


def test_words_and_probabilities() -> None:
    extra = [tensor(name, FP32, [-1]) for name in ("segment_avg_logprob", "segment_no_speech_prob")]
    whole = said(
        "a b",
        [(0, 1, "a b")],
        segment_avg_logprob=floats(-0.5),
        segment_no_speech_prob=floats(0.25),
        word=texts("a", "b"),
        word_start=floats(0, 0.1),
        word_end=floats(0.1, 0.2),
        language=texts("en"),
    )
    bench = bench_of(whole, output=[*SEGMENTS, *extra, *WORDS, *LANGUAGE])
    words = [{"word": "a", "start": 0.0, "end": 0.1}, {"word": "b", "start": 0.1, "end": 0.2}]
    asked_for: dict[str, Any] = {"timestamp_granularities[]": ["word"], "response_format": "verbose_json"}
    answer = ok(heard(bench, **asked_for)).json()
    assert (answer["words"], answer["language"], "segments" in answer) == (words, "en", False)
    answer = ok(heard(bench, **{**asked_for, "timestamp_granularities[]": ["segment", "word"]})).json()
    (segment,) = answer["segments"]
    assert (answer["words"], segment["avg_logprob"], segment["no_speech_prob"]) == (words, -0.5, 0.25)
    # By curl people write it without brackets.
    assert ok(heard(bench, timestamp_granularities="word", response_format="verbose_json")).json()["words"] == words
    assert ok(heard(bench)).json()["languages"] == [{"code": "en"}]


def test_tokens() -> None:
    whole = said("a", prompt_tokens=np.array([7], np.int32), completion_tokens=np.array([3], np.int64))
    bench = bench_of(whole, output=[*SEGMENTS, *COUNTS])
    usage = {"type": "tokens", "input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    assert ok(heard(bench)).json()["usage"] == usage
    (record,) = bench.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (7, 3)


def test_the_only_language_of_a_model() -> None:
    bench = bench_of(HELLO, openai_language="en")
    answer = ok(heard(bench, language="EN", response_format="verbose_json")).json()
    assert answer["language"] == "en"
    assert refusal(heard(bench, language="de")) == (400, "language", "unsupported_parameter")


def test_translations() -> None:
    bench = bench_of(HELLO, input=INPUTS, output=[*SEGMENTS, *LANGUAGE])
    bench.model_calls.models["ear"] = lambda _: {**HELLO, "language": texts("de")}
    assert ok(heard(bench, path=TRANSLATIONS)).json() == {"text": TEXT}
    assert sent(bench)["task"].item() == b"translate"
    answer = ok(heard(bench, path=TRANSLATIONS, response_format="verbose_json")).json()
    assert (answer["language"], len(answer["segments"]), "usage" in answer) == ("english", 2, False)
    assert ok(heard(bench, path=TRANSLATIONS, response_format="vtt")).body.startswith(b"WEBVTT\n\n00:")
    for field in ("language", "stream", "timestamp_granularities[]"):
        param = field.removesuffix("[]")
        found = refusal(heard(bench, SECOND, TRANSLATIONS, **{field: ["x"]}))
        assert found == (400, param, "unknown_parameter")
    assert refusal(heard(bench_of(HELLO), path=TRANSLATIONS)) == (400, "model", "unsupported_endpoint")


def deltas(answer: Answered) -> list[Any]:
    assert ok(answer).headers["content-type"].startswith("text/event-stream")
    return [json.loads(each) for each in events(answer.body)]


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=40), st.lists(st.integers(0, 160), max_size=4), st.booleans())
def test_pieces_are_the_text_wherever_they_are_cut(text: str, cuts: list[int], batched: bool) -> None:
    raw = text.encode()
    ends = sorted(min(cut, len(raw)) for cut in cuts)
    pieces = [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]

    def says(_: Mapping[str, Array]) -> Iterable[Arrays]:
        shape = (1, 1) if batched else (1,)
        return [{"text": np.array([piece], object).reshape(shape)} for piece in pieces]

    bench = bench_of(HELLO, says, output=[tensor("text")], max_batch_size=int(batched))
    *events_before, done = deltas(heard(bench, stream="true"))
    assert done == {"type": "transcript.text.done", "text": text}
    assert {event["type"] for event in events_before} <= {"transcript.text.delta"}
    assert "".join(event["delta"] for event in events_before) == text
    assert ok(heard(bench)).json()["text"] == text


def test_a_model_that_answers_once_gives_one_delta() -> None:
    found = deltas(heard(bench_of(HELLO), stream="true", response_format="text"))
    assert found == [
        {"type": "transcript.text.delta", "delta": TEXT},
        {"type": "transcript.text.done", "text": TEXT},
    ]


def test_segments_of_several_responses_are_joined() -> None:
    pieces = [said("a ", [(0, 1, "a")], language=texts("en")), {"text": texts("b")}, said("", [(1, 2, "b")])]
    bench = bench_of(HELLO, lambda _: pieces, output=[*SEGMENTS, *LANGUAGE])
    answer = ok(heard(bench, response_format="verbose_json")).json()
    assert (answer["text"], answer["language"]) == ("a b", "en")
    assert [(one["id"], one["text"]) for one in answer["segments"]] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize("name", [name for name in BAD_FILES if name != "WAV, too long"])
def test_bad_files(name: str) -> None:
    file, code = BAD_FILES[name]
    for stream in ({}, {"stream": "true"}):
        bench = bench_of(HELLO)
        assert refusal(heard(bench, file, **stream)) == (400, "file", code)
        assert bench.model_calls.called == []
        assert (bench.service.audio.budget.held, bench.service.in_progress) == (0, 0)
        assert [getattr(record.outcome, "code", None) for record in bench.records] == [code]


def test_bounds() -> None:
    bench = bench_of(HELLO, bench=Bench(max_audio_bytes=20_000))
    assert refusal(heard(bench)) == (400, "file", "audio_file_too_large")
    bench = bench_of(HELLO, bench=Bench(max_audio_seconds=2))
    ok(heard(bench, silence(2)))
    assert refusal(heard(bench, silence(2.1))) == (400, "file", "audio_too_long")
    bench = bench_of(HELLO, bench=Bench(max_audio_memory_bytes=60_000))
    assert refusal(heard(bench))[0] == 503
    assert bench.service.audio.budget.held == 0
    bench = bench_of(HELLO, bench=Bench(max_request_bytes=30_000))
    assert heard(bench).status == 413


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"response_format": "xml"}, "response_format"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"language": "de"}, "language"),
        ({"prompt": "names"}, "prompt"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities"),
        ({"timestamp_granularities[]": ["word"], "response_format": "verbose_json"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": ["letter"], "response_format": "verbose_json"}, "timestamp_granularities[0]"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"stream": "perhaps"}, "stream"),
        ({"include[]": ["logprobs"]}, "include"),
        ({"chunking_strategy": "always"}, "chunking_strategy"),
        ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy"),
        ({"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "0.5"}, "chunking_strategy"),
        ({"keywords[]": ["Triton"]}, "keywords"),
        ({"languages[]": ["en", "de"]}, "languages"),
        ({"known_speaker_names[]": ["me"]}, "known_speaker_names"),
        ({"known_speaker_references[]": ["data:"]}, "known_speaker_references"),
        ({"seed": "1"}, "seed"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt[a]": "b"}, "prompt"),
        ({"prompt": "a", "prompt[a]": "b"}, "prompt[a]"),
        ({"model": "other"}, "model"),
    ],
)
def test_refusals(fields: dict[str, Any], param: str) -> None:
    bench = bench_of(HELLO)
    status, name, _ = refusal(heard(bench, **fields))
    assert (status, name) == (404 if param == "model" else 400, param)
    assert bench.model_calls.called == []


@pytest.mark.parametrize("format_name", ["srt", "vtt", "verbose_json"])
def test_times_that_the_model_does_not_give(format_name: str) -> None:
    bench = bench_of({"text": texts("x")}, output=[tensor("text")])
    found = refusal(heard(bench, response_format=format_name))
    assert found == (400, "response_format", "unsupported_parameter")
    assert ok(heard(bench, response_format="text")).body == b"x"


def test_fields_without_effect_are_named() -> None:
    fields: dict[str, Any] = {
        "chunking_strategy": "auto",
        "temperature": "0",
        "prompt": "",
        "stream": "false",
        "include[]": [],
    }
    answer = ok(heard(bench_of(HELLO), **fields))
    assert answer.headers["openai-bls-ignored"] == "chunking_strategy"
    bench = bench_of(HELLO, bench=Bench(unknown_fields="ignore"))
    assert ok(heard(bench, vad_filter="true")).headers["openai-bls-ignored"] == "vad_filter"


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        (b"{}", "application/json", None),
        (b"", "multipart/form-data", None),
        (b"", "multipart/form-data; boundary=b0", "file"),
        (b"--b0\r\n\r\nx\r\n--b0--\r\n", "multipart/form-data; boundary=b0", None),
        (form(None), "multipart/form-data; boundary=b0", "file"),
        (form(None, [("file", "text")]), "multipart/form-data; boundary=b0", "file"),
        (form(SECOND)[:-300], "multipart/form-data; boundary=b0", "file"),
        (form(SECOND, [("f" + str(n), "x") for n in range(70)]), "multipart/form-data; boundary=b0", None),
    ],
)
def test_bodies_that_are_no_form(body: bytes, kind: str, param: str | None) -> None:
    answer = asked(bench_of(HELLO), PATH, body, headers=[("content-type", kind)])
    assert refusal(answer)[:2] == (400, param)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=400), st.integers(0, 400))
def test_random_bodies_are_refused(noise: bytes, at: int) -> None:
    """Noise as the file, and noise in the midst of a form."""
    whole = form(b"", [("prompt", "")])
    for body in (form(noise), whole[:at] + noise + whole[at:]):
        assert asked(bench_of(HELLO), PATH, body, headers=headers()).status == 400


def test_other_models() -> None:
    bench = bench_of(HELLO)
    assert refusal(heard(bench, model="tiny")) == (400, "model", "unsupported_endpoint")
    assert refusal(heard(Bench()))[0] == 404
    assert refusal(asked(bench, "/v1/embeddings", {"input": "x", "model": "ear"}))[:2] == (400, "model")


@pytest.mark.parametrize(
    "whole",
    [
        {"text": texts()},
        {"text": texts("a", "b")},
        {"text": floats(1)},
        said("a", [(-1, 2, "a")]),
        said("a", [(2, 1, "a")]),
        said("a", [(0, float("inf"), "a")]),
        {**said("a", [(0, 1, "a")]), "segment_text": texts()},
        {**said("a", [(0, 1, "a")]), "segment_end": floats()},
    ],
)
def test_an_answer_that_does_not_fit_together(whole: dict[str, Array]) -> None:
    found = refusal(heard(bench_of(whole, lambda _: [whole])))
    assert (found[0], found[2]) == (502, "bad_model_answer")


def test_a_model_that_fails() -> None:
    def fail(_: Mapping[str, Array]) -> Iterable[Arrays]:
        raise ModelCallError("the model 'ear': too loud")

    def late(_: Mapping[str, Array]) -> Iterable[Arrays]:
        yield {"text": texts("Hel")}
        raise ModelCallError("the model 'ear': too loud")

    for says in (fail, late):
        assert refusal(heard(bench_of(HELLO, says)))[0] == 500
    assert refusal(heard(bench_of(HELLO, lambda _: [])))[0] == 502
    first, last = deltas(heard(bench_of(HELLO, late), stream="true"))
    assert (first["delta"], last["error"]["type"]) == ("Hel", "server_error")


def test_audio_that_has_no_room_on_its_way_to_the_model() -> None:
    def too_large(_: Mapping[str, Array]) -> Any:
        raise InputTooLargeError(1000)

    for bench in (bench_of(too_large), bench_of(HELLO, too_large)):
        assert refusal(heard(bench)) == (413, "file", None)
        assert bench.model_calls.keys == [""]


@pytest.mark.anyio
async def test_a_client_that_leaves() -> None:
    async def endless(_: Mapping[str, Array]) -> AsyncIterator[Arrays]:
        yield {"text": texts("Hel")}
        await until(lambda: False)

    async with over_socket() as (bench, port):
        bench_of(HELLO, endless, bench=bench)
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as sdk:
            stream = await sdk.audio.transcriptions.create(file=("a.wav", SECOND), model="ear", stream=True)
            assert (await anext(aiter(stream))).type == "transcript.text.delta"
            await stream.close()
        await until(lambda: bench.records)
        assert (bench.model_calls.closed_streams, bench.records[0].outcome) == (1, "cancelled")
        assert bench.service.audio.budget.held == 0


@pytest.mark.anyio
async def test_a_guard_sees_the_form_as_json_and_the_text() -> None:
    place = Place()
    place.guard.before = lambda question: {"request": {**question["request"], "prompt": "Say no names."}}
    place.guard.after = lambda question: {"answer": {"text": "***"}}
    bench_of(HELLO, bench=place.bench, input=INPUTS)
    body = form(SECOND, [("response_format", "srt"), ("temperature", "0.5")])
    found = await place.ask(PATH, body, None, headers=headers())
    assert (found.status, found.body) == (200, b"***")
    before, after = place.guard.asked
    assert before["request"] == {
        "file": base64.b64encode(SECOND).decode(),
        "response_format": "srt",
        "temperature": 0.5,
    }
    assert after["answer"]["text"].startswith("1\n00:00:00,000")
    assert place.bench.model_calls.called[1][1]["prompt"].item() == b"Say no names."
    place.guard.after = lambda question: {"answer": {"words": 1}}
    found = await place.ask(PATH, body, None, headers=headers())
    assert refusal(found) == (503, None, "guard_unavailable")
    place.guard.before = lambda question: {"error": {"message": "No.", "status": 403}}
    assert (await place.ask(PATH, body, None, headers=headers())).status == 403


@pytest.mark.anyio
async def test_on_tritons_ports() -> None:
    file = base64.b64encode(SECOND).decode()
    bench = bench_of(HELLO, lambda _: [{"text": texts("Hel")}, {"text": texts("lo.")}])
    entry, sink = TRITON_ENTRIES["audio.transcriptions"], FakeSink(opens_at_once=True)
    for text in (file, f"data:audio/wav;base64,{file}"):
        whole = await entry(Lifted.nothing({"file": text, "response_format": "text"}))(
            bench.service, request_context(), sink
        )
        assert isinstance(whole, bytes)
        assert json.loads(whole) == {"text": "Hello."}
    await entry(Lifted.nothing({"file": file, "stream": True}))(bench.service, request_context(), sink)
    await until(lambda: sink.ended)
    assert [chunk["type"] for chunk in sink.chunks] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]
    for bad in ("x", "data:audio/wav,x", 7, None, "AA=A", ""):
        with pytest.raises(InvalidRequestError) as caught:
            await entry(Lifted.nothing({"file": bad}))(bench.service, request_context(), sink)
        assert (caught.value.status, caught.value.param) == (400, "file")


@pytest.mark.anyio
async def test_a_timeout_outside_the_body() -> None:
    async def hang(_: Mapping[str, Array]) -> Arrays:
        await until(lambda: False)
        raise AssertionError

    bench = bench_of(hang)
    found = await ask(application(bench), "POST", PATH, form(), [*headers(), ("x-request-timeout", "0.5")])
    assert found.status == 504
    assert bench.service.audio.budget.held == 0


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ([("origin", "http://a"), ("sec-fetch-site", "same-origin")], 200),
        ([("origin", "http://a"), ("sec-fetch-site", "cross-site")], 415),
        ([("origin", "http://a")], 415),
        ([("origin", "http://b"), ("sec-fetch-site", "cross-site")], 200),
        ([], 200),
    ],
)
def test_forms_of_web_pages(origin: list[tuple[str, str]], status: int) -> None:
    bench = bench_of(HELLO, bench=Bench(cors_origins="http://b"))
    assert asked(bench, PATH, form(), headers=[*headers(), *origin]).status == status
