"""Samples of speech as 16-bit PCM, and the head of a WAV file."""

from __future__ import annotations

import struct

import numpy as np

from openai_bls.transport.model_calls import Array

_UNKNOWN_BYTES = 0xFFFFFFFF
"""Size that a WAV file names whose end is not known: players read to the end of the stream."""
_SAMPLE_BYTES = 2
_HEAD_BYTES = 36


def pcm(samples: Array) -> bytes:
    """16-bit little-endian PCM of one channel.

    Args:
        samples: INT16 as they are, or FP32, of which what is beyond -1 and 1 is cut.
    """
    if samples.dtype != np.int16:
        samples = np.clip(samples, -1.0, 1.0) * np.float32(32767.0)
    return samples.astype("<i2").tobytes()


def wav_head(sample_rate: int, data_bytes: int | None) -> bytes:
    """Beginning of a WAV file of 16-bit PCM of one channel.

    Args:
        sample_rate: samples in a second.
        data_bytes: bytes of the samples; None is not known yet.
    """
    file_bytes = _UNKNOWN_BYTES if data_bytes is None else data_bytes + _HEAD_BYTES
    form = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate, sample_rate * _SAMPLE_BYTES, _SAMPLE_BYTES, 16)
    data = struct.pack("<I", _UNKNOWN_BYTES if data_bytes is None else data_bytes)
    return b"RIFF" + struct.pack("<I", file_bytes) + b"WAVEfmt " + form + b"data" + data
