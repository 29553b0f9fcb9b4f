"""Sounds for requests: files of every format that is taken, and bad ones."""

from __future__ import annotations

import io
import struct
from typing import Any

import av
import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

ENCODERS = {
    "flac": ("flac", "flac"),
    "m4a": ("ipod", "aac"),
    "mp3": ("mp3", "libmp3lame"),
    "mp4": ("mp4", "aac"),
    "mpeg": ("mpeg", "mp2"),
    "mpga": ("mp2", "mp2"),
    "ogg": ("ogg", "libopus"),
    "oga": ("ogg", "flac"),
    "wav": ("wav", "pcm_s16le"),
    "webm": ("webm", "libopus"),
}
"""Ending of a file → FFmpeg's format and encoder."""

ENCODED_RATE = 48_000
"""Samples per second of files of `ENCODERS`: a rate that all of them have."""

_PCM, _FLOAT = 1, 3


def tone(seconds: float, rate: int, hertz: float = 440.0) -> Samples:
    """A sine at a third of the full scale."""
    return np.asarray(np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate) / 3, np.float32)


def encoded(form: str, samples: Samples, rate: int = ENCODED_RATE) -> bytes:
    """A file of one of `ENCODERS`, in stereo.

    Args:
        form: ending of the file.
        samples: samples of both channels.
        rate: samples per second.
    """
    file = io.BytesIO()
    container_format, codec = ENCODERS[form]
    with av.open(file, "w", format=container_format) as container:
        stream: Any = container.add_stream(codec, rate=rate, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.stack([samples, samples]), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(
            format=stream.format.name, layout="stereo", rate=rate, frame_size=stream.codec_context.frame_size or None
        )
        for piece in (frame, None):
            for part in resampler.resample(piece):
                container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return file.getvalue()


def wav(samples: npt.NDArray[Any], rate: int = 16_000, *, bits: int = 16, is_float: bool = False) -> bytes:
    """A WAV file.

    Args:
        samples: from -1 to 1, a row for each channel.
        rate: samples per second.
        bits: bits of a sample; with `is_float` 32 or 64.
        is_float: samples are floats.
    """
    channels = len(samples)
    data = _pcm(np.ascontiguousarray(samples.T), bits, is_float=is_float)
    size = channels * bits // 8
    kind = _FLOAT if is_float else _PCM
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * size, size, bits)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def _pcm(values: npt.NDArray[Any], bits: int, *, is_float: bool) -> bytes:
    kinds = {(8, False): "u1", (16, False): "<i2", (32, False): "<i4", (32, True): "<f4", (64, True): "<f8"}
    if not is_float:
        values = np.round(values.astype(np.float64) * (2 ** (bits - 1) - 1)) + 128 * (bits == 8)
    if bits == 24:
        return bytes(values.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :3].tobytes())
    return bytes(values.astype(kinds[bits, is_float]).tobytes())


MARKS = {
    "flac": b"fLaC",
    "mkv": b"\x1aE\xdf\xa3",
    "mov": b"\0\0\0\x20ftypisom",
    "mp3": b"\xff\xfb",
    "id3": b"ID3",
    "mpeg": b"\0\0\1\xba",
    "ogg": b"OggS",
    "wav": b"RIFF\xff\xff\xff\xffWAVE",
    "wav of samples": b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0",
    "none": b"",
}
"""First bytes of files, by which their format is told."""


def silence(seconds: float, rate: int = 16_000) -> bytes:
    """A WAV file without a sound."""
    return wav(np.zeros((1, round(seconds * rate))), rate)


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty_audio_file"),
    "text": (b"Hello, this is no sound.", "unsupported_audio_media_type"),
    "AIFF": (b"FORM\0\0\0\x20AIFFCOMM", "unsupported_audio_media_type"),
    "AAC without a container": (b"\xff\xf1\x50\x80" + bytes(60), "unsupported_audio_media_type"),
    "a list of other files": (b"ffconcat version 1.0\nfile /etc/hostname\n", "unsupported_audio_media_type"),
    "a playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n", "unsupported_audio_media_type"),
    "WAV without a sample": (silence(0), "audio_parse_error"),
    "WAV, cut": (silence(1)[:-1000], "audio_parse_error"),
    "WAV of no numbers": (wav(np.full((1, 99), np.nan), bits=32, is_float=True), "audio_parse_error"),
    "WAV, too long": (silence(61, 8000), "audio_too_long"),
    "noise as MP3": (b"\xff\xfb" + np.random.default_rng(1).bytes(4000), "audio_parse_error"),
}
"""Name of a bad file → its bytes and the code of the refusal, where audio may have a minute."""
