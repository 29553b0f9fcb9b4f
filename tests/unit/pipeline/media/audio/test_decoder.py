"""Audio decoder processes: what they make of files of every format, and of bad ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.errors import OverloadedError
from openai_bls.pipeline.media.audio import decode_worker
from openai_bls.pipeline.media.audio.decoder import AudioDecoder
from openai_bls.pipeline.media.errors import AudioError
from tests.sounds import BAD_FILES, ENCODED_RATE, ENCODERS, MARKS, encoded, silence, tone, wav

RATE = 16_000
MAX_S = 60
SECONDS = 1.5
REFUSALS = ("audio_parse_error", "audio_too_long", "empty_audio_file", "unsupported_audio_media_type")
"""Codes for bad bytes."""
FILES = {form: encoded(form, tone(SECONDS, ENCODED_RATE)) for form in ENCODERS}


@pytest.fixture(scope="module")
def decoder() -> Iterator[AudioDecoder]:
    made = AudioDecoder(MAX_S, 1 << 20, processes=1)
    yield made
    made.close()


async def decoded(decoder: AudioDecoder, data: bytes, rate: int = RATE) -> Any:
    taken: list[int] = []
    samples = await decoder.decode(data, rate, taken.append)
    assert taken == [len(samples)]
    return np.frombuffer(samples, np.float32)


def run(decoder: AudioDecoder, data: bytes, rate: int = RATE) -> Any:
    """For tests of generated input, which are no coroutines."""
    return asyncio.run(decoded(decoder, data, rate))


def heard(decoder: AudioDecoder, data: bytes) -> float | str:
    """Seconds that are heard of a file, or the code of the refusal."""
    try:
        return len(run(decoder, data)) / RATE
    except AudioError as error:
        return error.code


@pytest.mark.parametrize("form", ENCODERS)
@pytest.mark.parametrize("rate", [8000, RATE, 44_100, ENCODED_RATE])
async def test_formats(decoder: AudioDecoder, form: str, rate: int) -> None:
    samples = await decoded(decoder, FILES[form], rate)
    # What encoders add at the ends.
    assert abs(len(samples) / rate - SECONDS) < 0.06
    middle = samples[rate // 4 : rate // 4 + rate]
    spectrum = np.abs(np.fft.rfft(middle))
    assert spectrum.argmax() == 440
    assert 0.3 < middle.max() < 0.37


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.sampled_from([(8, False), (16, False), (24, False), (32, False), (32, True), (64, True)]),
    st.integers(8000, 96_000),
    st.integers(1, 3000),
    st.randoms(use_true_random=False),
)
def test_channels_rates_and_samples(
    decoder: AudioDecoder, channels: int, kind: tuple[int, bool], rate: int, count: int, random: Any
) -> None:
    bits, is_float = kind
    given_samples = np.random.default_rng(random.getrandbits(32)).uniform(-1, 1, (channels, count))
    data = wav(given_samples, rate, bits=bits, is_float=is_float)
    same = run(decoder, data, rate)
    # Exactly the mean of the channels, as far as the bits go.
    assert np.abs(same - given_samples.mean(axis=0)).max() < 2.0 ** (2 - min(bits, 20))
    wanted = count * RATE / rate
    try:
        # The resampler's filter has 32 taps, of which the ends may want all.
        assert abs(len(run(decoder, data)) - wanted) <= 1 + 32 * RATE / rate
    except AudioError:
        # Too few to make one of.
        assert wanted < 64


async def test_a_file_written_as_a_stream_has_no_size(decoder: AudioDecoder) -> None:
    data = silence(1)
    at = data.index(b"data") + 4
    assert len(await decoded(decoder, data[:at] + b"\xff" * 4 + data[at + 4 :])) == RATE


async def test_silence_is_a_sound(decoder: AudioDecoder) -> None:
    assert not (await decoded(decoder, silence(2))).any()


@pytest.mark.parametrize("name", BAD_FILES)
async def test_bad_files(decoder: AudioDecoder, name: str) -> None:
    data, code = BAD_FILES[name]
    with pytest.raises(AudioError) as caught:
        await decoded(decoder, data)
    assert caught.value.code == code
    # The same process goes on.
    assert len(await decoded(decoder, silence(1))) == RATE
    assert len(decoder.pids) == 1


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(MARKS)), st.binary(max_size=600))
def test_random_bytes_are_refused_or_heard(decoder: AudioDecoder, mark: str, data: bytes) -> None:
    pids = decoder.pids
    found = heard(decoder, MARKS[mark] + data)
    assert found in REFUSALS or (isinstance(found, float) and found <= MAX_S)
    assert not pids or decoder.pids == pids


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.floats(0, 1, exclude_max=True))
def test_cut_files_are_refused_or_heard_up_to_the_cut(decoder: AudioDecoder, form: str, share: float) -> None:
    data = FILES[form]
    pids = decoder.pids
    found = heard(decoder, data[: int(share * len(data))])
    # Where the head says how long it is, no more than the last packets may be missing.
    least = 0 if form in ("mp3", "mpeg", "mpga", "ogg", "oga") else SECONDS - 0.6
    assert found in REFUSALS or (isinstance(found, float) and least < found < SECONDS + 0.1)
    assert not pids or decoder.pids == pids


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_damaged_files_are_refused_or_heard(decoder: AudioDecoder, form: str, data: st.DataObject) -> None:
    file = bytearray(FILES[form])
    for _ in range(data.draw(st.integers(1, 6))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    found = heard(decoder, bytes(file))
    assert found in REFUSALS or (isinstance(found, float) and found <= MAX_S)


async def test_an_hour_of_silence_is_refused_before_it_is_decoded(decoder: AudioDecoder) -> None:
    hour = encoded("flac", np.zeros(3600 * 8000, np.float32), 8000)
    assert len(hour) < 1 << 20
    with pytest.raises(AudioError) as caught:
        await decoded(decoder, hour)
    assert caught.value.code == "audio_too_long"


async def test_without_room_the_samples_are_not_sent(decoder: AudioDecoder) -> None:
    def full(size: int) -> None:
        raise OverloadedError(f"no room for {size}")

    with pytest.raises(OverloadedError, match="no room for 64000"):
        await decoder.decode(silence(1), RATE, full)
    assert len(await decoded(decoder, silence(1))) == RATE


async def test_a_process_that_dies_is_replaced() -> None:
    decoder = AudioDecoder(MAX_S, 1 << 20, processes=1)
    try:
        await decoded(decoder, silence(1))
        (first,) = decoder.pids
        os.kill(first, signal.SIGKILL)
        with pytest.raises(AudioError) as caught:
            await decoded(decoder, silence(1))
        assert caught.value.code == "audio_parse_error"
        assert len(await decoded(decoder, silence(1))) == RATE
        assert first not in decoder.pids
    finally:
        decoder.close()


# Root may have more processes than the limit says.
_WITHOUT_THREADS = """
import importlib.util, os, resource, sys, threading
spec = importlib.util.spec_from_file_location("job", sys.argv[1])
job = importlib.util.module_from_spec(spec)
spec.loader.exec_module(job)
job.load()
if os.getuid() == 0:
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    data = sys.stdin.buffer.read()
    print(len(job.samples_of(data, 16000, 60)))
"""


@pytest.mark.parametrize("form", ["flac", "m4a", "mp3", "webm"])
def test_no_format_needs_a_thread(form: str) -> None:
    script = [sys.executable, "-c", _WITHOUT_THREADS, decode_worker.__file__]
    done = subprocess.run(script, input=FILES[form], capture_output=True, check=True)
    assert abs(int(done.stdout) / RATE - SECONDS) < 0.06
