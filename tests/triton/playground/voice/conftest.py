"""A server with a voice and a recognizer, and a browser whose microphone says a sentence."""

from __future__ import annotations

import shutil
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hibari import Hibari

from openai_bls.launcher.testing import RunningServer, run_server
from tests.triton.conftest import ROOT
from tests.triton.playground.browser import Browser, Playground, opened, started_browser
from tests.triton.playground.voice.support import MOST_S, OBSERVE, RATE, SENTENCE, entered

# The beginning of the prompt comes back, which is the system prompt: what an answer is, is known.
ENV = {
    "OPENAI_BLS_ENGINE": "null",
    "OPENAI_BLS_ENGINE_NULL_ECHO": "true",
    "OPENAI_BLS_API_KEY": "secret",
    "OPENAI_BLS_MAX_AUDIO_SECONDS": str(MOST_S),
    "OPENAI_BLS_TASK_MODELS_INTERVAL_S": "0.1",
}


@pytest.fixture(scope="session")
def voice() -> Hibari:
    """The package of the server's voice."""
    return Hibari()


@pytest.fixture(scope="package")
def voiced(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("voices")
    for name in ("speech", "transcription"):
        shutil.copytree(ROOT / "examples_packaged" / name, models / name)
    with run_server(repository, ENV, [f"--model-repository={models}"]) as running:
        yield running


@pytest.fixture(scope="module")
def browser(voice: Hibari, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser whose microphone says the sentence once when it is opened. At `plain.test` the server's address is not
    one of this machine to it."""
    path = tmp_path_factory.mktemp("microphone") / "sentence.wav"
    samples = np.clip(voice(SENTENCE, seed=0), -1, 1) * np.float32(32767)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    with started_browser(
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={path}%noloop",
        "--host-resolver-rules=MAP plain.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ) as started:
        yield started


@pytest.fixture
def playground(browser: Browser, voiced: RunningServer) -> Iterator[Playground]:
    """A page that may use the microphone."""
    url = voiced.openai_url.removesuffix("v1")
    with opened(browser, url, script=OBSERVE, permissions=["microphone"]) as found:
        yield entered(found)
