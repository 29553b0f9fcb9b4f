"""The models of examples_packaged/, whose weights index packages carry, through the official SDK and Triton's doors.

Each answer is that of the package called alone.
"""

from __future__ import annotations

import base64
import io
import json
import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from hibari import Hibari
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from tritonclient.grpc import InferenceServerClient, InferInput

from openai_bls.launcher.smoke.check import run
from openai_bls.launcher.smoke.registry_checks import CHECKS
from openai_bls.launcher.smoke.session import Session, Target
from openai_bls.launcher.testing import RunningServer, run_server
from openai_bls.transport.model_calls import Array
from tests.triton.conftest import ROOT
from tests.triton.playground.page_shell import Shell
from tests.unit.docs.blocks import blocks
from tests.waiting import until

pytestmark = pytest.mark.triton

EXAMPLES = ROOT / "examples_packaged"
SENTENCES = "The capital of France is Paris. It is a large city. I like to go there in summer."
RATE, HEARD_RATE = 24000, 16000
HEARD = (
    "The quick brown fox jumps over the lazy dog.",
    "Paris is the capital of France.",
    "This is a test of the speech recognition system.",
    "We went to the market to buy some bread and milk.",
)
"""Sentences of which the recognizer hears every word."""


@pytest.fixture(scope="module")
def packaged(repository: Path) -> Iterator[RunningServer]:
    flags = [f"--model-repository={EXAMPLES}"]
    env = {"OPENAI_BLS_ENGINE": "null", "OPENAI_BLS_TASK_MODELS_INTERVAL_S": "0.1"}
    with run_server(repository, env, flags) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(packaged: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=packaged.openai_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def voice() -> Hibari:
    return Hibari()


def pcm_of(voice: Hibari, text: str, speed: float = 1.0) -> bytes:
    """What the package says alone."""
    samples: Array = np.clip(voice(text, speed, seed=0), -1, 1) * np.float32(32767)
    return samples.astype("<i2").tobytes()


def inferred(server: RunningServer, model: str, **inputs: Array) -> list[dict[str, Array]]:
    """Responses of a decoupled model on Triton's gRPC port."""
    given = []
    for name, array in inputs.items():
        tensor = InferInput(name, list(array.shape), "FP32" if array.dtype == np.float32 else "BYTES")
        tensor.set_data_from_numpy(array)
        given.append(tensor)
    found: list[Any] = []
    with InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: found.append(error or result))
        client.async_stream_infer(model, given, enable_empty_final_response=True)
        until(lambda: found and found[-1].get_response().parameters["triton_final_response"].bool_param)
        client.stop_stream()
    responses = [[output.name for output in result.get_response().outputs] for result in found]
    return [
        {name: result.as_numpy(name) for name in names} for result, names in zip(found, responses, strict=True) if names
    ]


def test_speech_is_that_of_the_package(sdk: openai.OpenAI, voice: Hibari) -> None:
    expected = pcm_of(voice, SENTENCES)
    # It has one voice; the SDK must name one.
    create = sdk.audio.speech.with_raw_response.create
    raw = create(model="speech", voice="alloy", input=SENTENCES, response_format="pcm")
    assert (raw.headers["content-type"], raw.headers["openai-bls-ignored"]) == ("audio/pcm;rate=24000", "voice")
    assert raw.content == expected
    file = sdk.audio.speech.create(model="speech", voice="alloy", input=SENTENCES, response_format="wav").content
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (RATE, 1, 2)
        assert reader.readframes(len(file)) == expected
    fast = sdk.audio.speech.create(model="speech", voice="alloy", input="Yes.", response_format="pcm", speed=2).content
    assert fast == pcm_of(voice, "Yes.", 2.0)


def test_sentences_go_out_one_by_one(sdk: openai.OpenAI, voice: Hibari) -> None:
    create = sdk.audio.speech.with_streaming_response.create
    fields: dict[str, Any] = {"model": "speech", "voice": "alloy", "input": SENTENCES, "response_format": "pcm"}
    with create(**fields, stream_format="sse") as response:
        *deltas, done = [json.loads(line[6:]) for line in response.iter_lines() if line]
    pieces = [base64.b64decode(delta["audio"]) for delta in deltas]
    assert [delta["type"] for delta in deltas] == ["speech.audio.delta"] * 3
    assert [len(piece) for piece in pieces] == [2 * len(piece) for piece in voice.stream(SENTENCES, seed=0)]
    assert b"".join(pieces) == pcm_of(voice, SENTENCES)
    assert done["type"] == "speech.audio.done"


def test_speech_on_tritons_doors(packaged: RunningServer, voice: Hibari) -> None:
    expected = pcm_of(voice, SENTENCES)
    found = inferred(packaged, "speech", text=np.array([SENTENCES.encode()], np.object_))
    samples = np.concatenate([response["audio"] for response in found])
    assert len(found) == 3
    assert (np.clip(samples, -1, 1) * np.float32(32767)).astype("<i2").tobytes() == expected
    body = {"input": SENTENCES, "response_format": "pcm"}
    with openai.OpenAI(base_url=packaged.http_url, api_key="none", max_retries=0) as triton:

        def ask(door: str, body: dict[str, Any]) -> openai.HttpxBinaryResponseContent:
            fields = {"endpoint": "audio.speech", "request": json.dumps(body)}
            kind = openai.HttpxBinaryResponseContent
            return triton.post(f"/v2/models/openai_bls/{door}", body=fields, cast_to=kind)

        answer = json.loads(json.loads(ask("generate", body).content)["response"])
        assert (base64.b64decode(answer["audio"]), answer["format"], answer["sample_rate"]) == (expected, "pcm", RATE)
        lines = ask("generate_stream", {**body, "stream_format": "sse"}).text.split("\n")
        events = [json.loads(json.loads(line[6:])["response"]) for line in lines if line.startswith("data:")]
        assert b"".join(base64.b64decode(event.get("audio", "")) for event in events) == expected


def test_a_text_without_a_word_is_no_audio(sdk: openai.OpenAI) -> None:
    file = sdk.audio.speech.create(model="speech", voice="alloy", input="👩🏽\u200d💻", response_format="wav").content
    assert (file[:4], len(file)) == (b"RIFF", 44)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": " "}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"response_format": "mp3"}, "response_format"),
        ({"instructions": "Whisper."}, "instructions"),
        ({"speed": 5}, "speed"),
        ({"model": "language"}, "model"),
    ],
)
def test_refusals(sdk: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.audio.speech.create(**{"model": "speech", "voice": "alloy", "input": "x", **fields})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_a_client_that_leaves_frees_the_voice(sdk: openai.OpenAI, packaged: RunningServer, voice: Hibari) -> None:
    """The model has the next request when it has given this one up."""
    create = sdk.audio.speech.with_streaming_response.create
    fields: dict[str, Any] = {"model": "speech", "voice": "alloy", "response_format": "pcm"}
    with create(**fields, input="It is a large city. " * 200) as response:
        first = next(response.iter_bytes())
    length = len(first)
    assert 0 < length < len(pcm_of(voice, "It is a large city.")) * 200
    assert sdk.audio.speech.create(**fields, input="Yes.").content == pcm_of(voice, "Yes.")
    until(lambda: 'outcome="cancelled"' in metrics_of(sdk))


def metrics_of(sdk: openai.OpenAI) -> str:
    lines = sdk.get("/../metrics", cast_to=str).splitlines()
    return "\n".join(line for line in lines if "audio.speech" in line)


def test_languages_are_those_of_the_package(sdk: openai.OpenAI) -> None:
    texts = [
        "Where is the library?",
        "Wo ist die Bibliothek?",
        "Bonjour tout le monde, comment allez-vous ?",
        "図書館はどこですか。",
    ]
    alone = LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True)
    answer: Any = sdk.post("/classify", body={"model": "language", "input": texts}, cast_to=object)
    assert [data["label"] for data in answer["data"]] == ["en", "de", "fr", "ja"]
    for text, data in zip(texts, answer["data"], strict=True):
        expected = dict(alone.rank(text))
        assert data["num_classes"] == len(expected) == 97
        assert data["probs"] == [float(np.float32(expected[label])) for label in sorted(expected)]
    moderated = sdk.moderations.create(model="language", input=texts[1]).results[0]
    assert (moderated.categories.model_extra or {})["de"]


def test_commands_of_the_readme(packaged: RunningServer, repository: Path, tmp_path: Path) -> None:
    """The commands that the README has for these models."""
    shell = Shell(tmp_path, repository, packaged)
    (block,) = [block for block in blocks("examples/README.md") if "/v1/audio/speech" in block.code]
    done = shell.run(block.language, block.code)
    assert done.returncode == 0, block.name + done.stdout + done.stderr
    assert '"label":"fr"' in done.stdout


def wav_of(samples: Array) -> bytes:
    """A file of 16-bit samples, 16,000 in a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(HEARD_RATE)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def test_what_is_spoken_is_heard(sdk: openai.OpenAI) -> None:
    """From text to audio and back, by two models that know nothing of each other."""
    for text in HEARD:
        audio = sdk.audio.speech.create(model="speech", voice="alloy", input=text, response_format="wav").content
        found = sdk.audio.transcriptions.create(model="transcription", file=("said.wav", audio))
        assert found.text == re.sub("[.,]", "", text.lower())


def test_transcriptions_are_those_of_the_model_alone(
    sdk: openai.OpenAI, packaged: RunningServer, voice: Hibari
) -> None:
    spoken: Array = voice(SENTENCES, seed=0)
    times = np.arange(0, len(spoken), RATE / HEARD_RATE)
    samples: Array = (np.interp(times, np.arange(len(spoken)), spoken) * 32767).astype("<i2")
    alone = inferred(packaged, "transcription", audio=samples.astype(np.float32) / np.float32(32768))

    def column(name: str) -> list[Any]:
        values = [value for response in alone for value in response[name].tolist()]
        return [value.decode() if isinstance(value, bytes) else value for value in values]

    pieces = column("text")
    assert len(pieces) == 3
    file = ("said.wav", wav_of(samples))
    # An audio in between, of which the recognizer would learn what noise is.
    noise = wav_of(np.random.default_rng(0).normal(0, 10_000, 2 * HEARD_RATE).astype("<i2"))
    sdk.audio.transcriptions.create(model="transcription", file=("noise.wav", noise))
    found = sdk.audio.transcriptions.create(
        model="transcription", file=file, response_format="verbose_json", timestamp_granularities=["segment", "word"]
    )
    assert (found.text, found.language) == ("".join(pieces), "en")
    assert found.duration == pytest.approx(len(samples) / HEARD_RATE, abs=0.01)
    segments, words = found.segments or [], found.words or []
    assert [segment.text for segment in segments] == column("segment_text")
    assert [segment.start for segment in segments] == pytest.approx(column("segment_start"), abs=1e-3)
    assert [segment.end for segment in segments] == pytest.approx(column("segment_end"), abs=1e-3)
    assert [word.word for word in words] == column("word") == found.text.split()
    assert [word.start for word in words] == pytest.approx(column("word_start"), abs=1e-3)
    assert [word.end for word in words] == pytest.approx(column("word_end"), abs=1e-3)
    stream = sdk.audio.transcriptions.create(model="transcription", file=file, stream=True)
    *deltas, done = stream
    assert [delta.delta for delta in deltas if delta.type == "transcript.text.delta"] == pieces
    assert done.type == "transcript.text.done"
    assert done.text == found.text
    subtitles = sdk.audio.transcriptions.create(model="transcription", file=file, response_format="srt")
    assert subtitles.count(" --> ") == 3
    silence = sdk.audio.transcriptions.create(model="transcription", file=("no.wav", wav_of(samples * np.int16(0))))
    assert silence.text == ""
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.audio.transcriptions.create(model="transcription", file=file, language="fr")
    assert caught.value.param == "language"


def test_smoke_checks_find_their_models(packaged: RunningServer) -> None:
    checks = [check for check in CHECKS if "audio" in check.name and "translations" not in check.name]
    outcomes = list(run(checks, Session(Target(packaged.openai_url, packaged.http_url))))
    assert [outcome.status for outcome in outcomes] == ["ok"] * 4
