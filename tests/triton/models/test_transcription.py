"""Transcriptions and translations through the official SDK and Triton's own doors, on one real server."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from openai_bls.launcher.smoke.check import run
from openai_bls.launcher.smoke.registry_checks import CHECKS
from openai_bls.launcher.smoke.session import Session, Target
from openai_bls.launcher.testing import RunningServer, run_server
from openai_bls.pipeline.media.audio.decoder import AudioDecoder
from tests.sounds import BAD_FILES, ENCODED_RATE, ENCODERS, encoded, silence, tone, wav
from tests.triton import triton_client
from tests.triton.metrics import find, scrape
from tests.waiting import until

pytestmark = pytest.mark.triton

RATE = 16_000
WAIT_S = 60.0
AUDIO = "TYPE_FP32 [ -1 ]"
TEXT = "TYPE_STRING [ 1 ]"
TIMES = {f"{of}_{end}": AUDIO for of in ("segment", "word") for end in ("start", "end")}
COUNTS = dict.fromkeys(("prompt_tokens", "completion_tokens"), "TYPE_INT32 [ 1 ]")
WORDS = dict.fromkeys(("segment_text", "word"), "TYPE_STRING [ -1 ]")
ALL_IN = {"audio": AUDIO, **dict.fromkeys(("language", "prompt", "task"), TEXT), "temperature": "TYPE_FP32 [ 1 ]"}
MODELS: dict[str, tuple[int, dict[str, str], dict[str, str]]] = {
    "whole": (0, ALL_IN, {"text": TEXT, **TIMES, **WORDS, "language": TEXT, **COUNTS}),
    "plain": (4, {"audio": AUDIO}, {"text": TEXT}),
    "streaming": (0, {"audio": AUDIO}, {"text": TEXT}),
}
"""Name → most inputs of a batch, inputs, outputs."""


def write_models(repository: Path) -> None:
    for name, (batch, given, made) in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        shutil.copy(Path(__file__).parent / "hearing_models" / "model.py", folder)
        lines = [
            'backend: "python"',
            f"max_batch_size: {batch}",
            f"model_transaction_policy {{ decoupled: {str(name == 'streaming').lower()} }}",
            'parameters { key: "openai_task" value { string_value: "transcription" } }',
        ]
        for kind, tensors in (("input", given), ("output", made)):
            for tensor, declared in tensors.items():
                data_type, dims = declared.split(" ", 1)
                lines.append(f'{kind} [ {{ name: "{tensor}" data_type: {data_type} dims: {dims} }} ]')
        (repository / name / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("hearing_models")
    write_models(repository)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path, models: Path) -> Iterator[RunningServer]:
    args = [f"--model-repository={models}", "--model-control-mode=explicit", "--load-model=*"]
    env = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_TASK_MODELS_INTERVAL_S": "0.1"}
    with run_server(repository, env, args) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0, timeout=WAIT_S) as client:
        yield client


@pytest.fixture(scope="module")
def triton(server: RunningServer) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.grpc_url) as client:
        yield client


FILE = wav(np.stack([tone(3.5, 44_100), tone(3.5, 44_100, 660)]), 44_100)


def decoded(data: bytes) -> Any:
    """Samples as the model is to get them."""
    decoder = AudioDecoder(100, 1 << 20, processes=1)
    try:
        return np.frombuffer(asyncio.run(decoder.decode(data, RATE, lambda size: None)), np.float32)
    finally:
        decoder.close()


def alone(triton: InferenceServerClient, model: str, samples: Any) -> str:
    """Text of a model that is called without this server's API."""
    batch = MODELS[model][0]
    value = samples[np.newaxis] if batch else samples
    given = InferInput("audio", value.shape, "FP32")
    given.set_data_from_numpy(value)
    (found,) = triton.infer(model, [given]).as_numpy("text").reshape(-1).tolist()
    return str(found.decode())


def test_the_text_is_that_of_the_model_alone(sdk: openai.OpenAI, triton: InferenceServerClient) -> None:
    expected = alone(triton, "plain", decoded(FILE))
    assert expected.startswith("0:0.1")
    answer = sdk.audio.transcriptions.create(file=("a.wav", FILE), model="plain")
    assert (answer.text, answer.usage) == (expected, answer.usage)
    assert answer.usage is not None
    assert answer.usage.to_dict() == {"type": "duration", "seconds": 3.5}
    # Pieces of the decoupled one are the same words.
    assert sdk.audio.transcriptions.create(file=FILE, model="streaming").text == f"{expected} "


@pytest.mark.parametrize("ending", ENCODERS)
def test_every_format(sdk: openai.OpenAI, triton: InferenceServerClient, ending: str) -> None:
    file = encoded(ending, tone(2, ENCODED_RATE))
    answer = sdk.audio.transcriptions.create(file=(f"a.{ending}", file), model="plain", response_format="text")
    assert answer == alone(triton, "plain", decoded(file))


def test_all_fields(sdk: openai.OpenAI) -> None:
    answer = sdk.audio.transcriptions.create(
        file=FILE,
        model="whole",
        language="en",
        prompt="names",
        temperature=0.5,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        chunking_strategy="auto",
    )
    text, _, given = answer.text.partition(" {")
    assert json.loads("{" + given) == {"language": "en", "prompt": "names", "task": "transcribe", "temperature": 0.5}
    assert (answer.duration, answer.language) == (3.5, "en")
    assert answer.words is not None
    assert answer.segments is not None
    assert [word.word for word in answer.words] == [one.text for one in answer.segments] == text.split()
    assert [(one.id, one.start, one.end) for one in answer.segments] == [(n, n, n + 1) for n in range(4)]


def test_subtitles_and_tokens(sdk: openai.OpenAI) -> None:
    srt: Any = sdk.audio.transcriptions.create(file=FILE, model="whole", response_format="srt")
    assert srt.startswith("1\n00:00:00,000 --> 00:00:01,000\n0:0.")
    vtt: Any = sdk.audio.transcriptions.create(file=FILE, model="whole", response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> ")
    usage = sdk.audio.transcriptions.create(file=FILE, model="whole").usage
    assert usage is not None
    assert usage.to_dict() == {"type": "tokens", "input_tokens": 175, "output_tokens": 4, "total_tokens": 179}


def test_translations(sdk: openai.OpenAI) -> None:
    assert '"task": "translate"' in sdk.audio.translations.create(file=FILE, model="whole").text
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.audio.translations.create(file=FILE, model="plain")
    assert (caught.value.param, caught.value.code) == ("model", "unsupported_endpoint")


@pytest.mark.parametrize(("model", "pieces"), [("plain", 1), ("streaming", 4)])
def test_streams(sdk: openai.OpenAI, model: str, pieces: int) -> None:
    events = list(sdk.audio.transcriptions.create(file=FILE, model=model, stream=True))
    assert [event.type for event in events] == ["transcript.text.delta"] * pieces + ["transcript.text.done"]
    whole = sdk.audio.transcriptions.create(file=FILE, model=model).text
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == whole


def test_a_client_that_leaves_cancels_the_model(sdk: openai.OpenAI, models: Path) -> None:
    stream = sdk.audio.transcriptions.create(file=silence(61, 8000), model="streaming", stream=True)
    assert next(iter(stream)).type == "transcript.text.delta"
    stream.close()
    until((models / "streaming" / "gone").exists, patience_s=WAIT_S)
    assert sdk.audio.transcriptions.create(file=FILE, model="streaming").text


@pytest.mark.parametrize("name", [name for name in BAD_FILES if name != "WAV, too long"])
def test_bad_files(sdk: openai.OpenAI, name: str) -> None:
    file, code = BAD_FILES[name]
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.audio.transcriptions.create(file=("a.wav", file), model="plain")
    assert (caught.value.param, caught.value.code) == ("file", code)


def test_an_hour(sdk: openai.OpenAI) -> None:
    hour = encoded("flac", np.zeros(3600 * 8000, np.float32), 8000)
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.audio.transcriptions.create(file=hour, model="plain")
    assert (caught.value.param, caught.value.code) == ("file", "audio_too_long")


def test_twenty_minutes(sdk: openai.OpenAI) -> None:
    file = encoded("flac", np.zeros(1200 * 8000, np.float32), 8000)
    answer = sdk.audio.transcriptions.create(file=file, model="plain")
    assert answer.text.endswith("1199:0.000")


def test_a_model_that_fails(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="this is too loud"):
        sdk.audio.transcriptions.create(file=wav(np.ones((1, RATE))), model="plain")


Door = Callable[[RunningServer, dict[str, Any]], list[dict[str, Any]]]


def by_generate(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    fields = {"endpoint": "audio.transcriptions", "request": json.dumps(body)}
    return [json.loads(triton_client.generate(server.http_url, "openai_bls", fields)["response"])]


def by_generate_stream(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    fields = {"endpoint": "audio.transcriptions", "request": json.dumps(body)}
    events = triton_client.generate_stream(server.http_url, "openai_bls", fields)
    return [json.loads(event["response"]) for event in events]


def by_grpc(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    given = {"endpoint": "audio.transcriptions", "request": json.dumps(body)}
    inputs = [triton_client.infer_input(name, [value], "BYTES") for name, value in given.items()]
    return triton_client.grpc_chat(server.grpc_url, inputs, {})


@pytest.mark.parametrize("door", [by_generate, by_generate_stream, by_grpc])
@pytest.mark.parametrize("model", ["plain", "streaming"])
def test_on_tritons_doors(sdk: openai.OpenAI, server: RunningServer, door: Door, model: str) -> None:
    body = {"file": base64.b64encode(FILE).decode(), "model": model}
    text = sdk.audio.transcriptions.create(file=FILE, model=model).text
    (whole,) = door(server, body)
    assert whole["text"] == text
    with pytest.raises(triton_client.TritonError) as caught:
        door(server, {**body, "file": "AAAA"})
    assert caught.value.body["error"]["param"] == "file"


@pytest.mark.parametrize("door", [by_generate_stream, by_grpc])
@pytest.mark.parametrize(("model", "pieces"), [("plain", 1), ("streaming", 4)])
def test_streams_on_tritons_doors(
    sdk: openai.OpenAI, server: RunningServer, door: Door, model: str, pieces: int
) -> None:
    text = sdk.audio.transcriptions.create(file=FILE, model=model).text
    *deltas, done = door(server, {"file": base64.b64encode(FILE).decode(), "model": model, "stream": True})
    assert [event["type"] for event in deltas] == ["transcript.text.delta"] * pieces
    assert "".join(event["delta"] for event in deltas) == text
    assert (done["type"], done["text"]) == ("transcript.text.done", text)


def test_smoke_and_metrics(server: RunningServer) -> None:
    names = ("audio/transcriptions", "audio/translations", "audio.transcriptions", "audio.translations")
    checks = [check for check in CHECKS if check.name.endswith(names)]
    outcomes = list(run(checks, Session(Target(server.openai_url, server.http_url))))
    assert len(outcomes) == 4
    assert {outcome.status for outcome in outcomes} <= {"ok", "not supported"}, outcomes
    assert find(scrape(server), "requests_total", endpoint="audio.transcriptions", model="plain", outcome="done") > 0
