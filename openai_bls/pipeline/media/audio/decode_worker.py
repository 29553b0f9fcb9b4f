"""Job of an audio decoder process (`core/processes/worker.py`): from an encoded file to mono samples at one rate.

With nothing of openai_bls imported. `media/decoder_pool.py` has the protocol: the size is the number of samples, which
are 32-bit floats.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

JOB = struct.Struct("<QII")
"""Head of a job: bytes that follow, samples per second to make, most seconds."""
COUNT = struct.Struct("<Q")
"""Number of samples."""
ERROR = struct.Struct("<HH")
"""Bytes of the code and of the sentence's end."""

FORMATS = "FLAC, MP3, MP4, MPEG, Ogg, WAV or WebM"

_SAMPLE_BYTES = 4
# Samples that are resampled at once: a call for each frame of 20 ms would take longer than the work.
_BLOCK = 1 << 15
# Seconds by which a file may be shorter than its head says: encoders' delays, and times that were rounded.
_SHORT_S = 0.5
# Of a sum of fractions.
_ROUNDING_S = 1e-6
# Formats whose head says how long the audio is, if only for some files. An MP3 file says it seldom, an Ogg file never.
_TELL_LENGTH = frozenset({"flac", "mov", "matroska"})
# Bytes of samples from which on a WAV file does not know them: it was written as a stream.
_UNKNOWN_SIZE = 0x7FFFF000
# Packets of an MP3 file before the first sound, and after the last, that may be no whole frames: tags, and the ends of
# what was cut from a stream.
_EDGE_PACKETS = 2
_MPEG_SYNC = 0xE0
_MPEG_LAYER = 0x06


class RefusedError(Exception):
    """Audio that cannot be used: code and end of the sentence."""


def format_of(data: bytes) -> str:
    """FFmpeg's name of the format of a file, by its first bytes.

    FFmpeg is never left to guess: some of its formats name other files, and it would open them.

    Raises:
        RefusedError: it is none of those that are taken.
    """
    if not data:
        raise RefusedError("empty_audio_file", "is empty")
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[4:8] == b"ftyp":
        return "mov"
    for mark, name in ((b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1aE\xdf\xa3", "matroska"), (b"\0\0\1\xba", "mpeg")):
        if data.startswith(mark):
            return name
    # Not the layer that marks AAC, which begins alike.
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & _MPEG_SYNC == _MPEG_SYNC and data[1] & _MPEG_LAYER
    if data.startswith(b"ID3") or is_frame:
        return "mp3"
    raise RefusedError("unsupported_audio_media_type", f"is no {FORMATS} file")


def is_cut(data: bytes) -> bool:
    """True if a WAV file ends before its samples do, by what it says of their size; FFmpeg takes what is there."""
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"data":
            return at + 8 + size > len(data) and size < _UNKNOWN_SIZE
        at += 8 + size + size % 2
    return True


def mixed(parts: list[Any], channels: int) -> Any:
    """Mean of the channels of arrays of samples, as 32-bit floats of which full scale is 1.

    Args:
        parts: samples of frames: a row for each channel, or all in one row, channel by channel.
        channels: number of channels.
    """
    import numpy as np

    samples = np.concatenate(parts, axis=1)
    if samples.shape[0] != channels:
        samples = samples.reshape(-1, channels).T
    mean = samples.mean(axis=0, dtype=np.float64)
    if samples.dtype.kind == "u":
        mean = mean / 128 - 1
    elif samples.dtype.kind == "i":
        mean /= 2.0 ** (8 * samples.dtype.itemsize - 1)
    return mean.astype(np.float32)


def frames(container: Any, stream: Any, form: str) -> Iterator[Any]:
    """Decoded frames of a stream.

    Raises:
        RefusedError: one is damaged.
    """
    from av.error import FFmpegError

    bad, heard = 0, False
    for packet in container.demux(stream):
        try:
            decoded = packet.decode()
        except FFmpegError:
            bad += 1
            if form != "mp3" or bad > _EDGE_PACKETS:
                raise
            continue
        if decoded and bad and heard:
            raise RefusedError("audio_parse_error", "is damaged")
        if decoded:
            bad, heard = 0, True
        yield from decoded


def blocks(decoded: Iterator[Any], max_s: int) -> Iterator[tuple[int, Any]]:
    """Rates and mono samples of frames, in blocks.

    Raises:
        RefusedError: there is more than `max_s` seconds of it.
    """
    parts: list[Any] = []
    size, seconds, kind = 0, 0.0, (0, 0, "")
    for frame in decoded:
        its_kind = (frame.sample_rate, frame.layout.nb_channels, frame.format.name)
        if its_kind != kind or size >= _BLOCK:
            if size:
                yield kind[0], mixed(parts, kind[1])
            parts, size, kind = [], 0, its_kind
        parts.append(frame.to_ndarray())
        size += frame.samples
        seconds += frame.samples / frame.sample_rate
        if seconds > max_s + _ROUNDING_S:
            raise RefusedError("audio_too_long", f"is longer than {max_s} s (max_audio_seconds)")
    if size:
        yield kind[0], mixed(parts, kind[1])


def resampled(found: Iterator[tuple[int, Any]], rate: int) -> Iterator[Any]:
    """Samples at `rate` of blocks at the rates that they have."""
    import av
    import numpy as np

    def out(made: list[Any]) -> Iterator[Any]:
        for frame in made:
            yield frame.to_ndarray()[0]

    resampler, its_rate = None, 0
    for block_rate, block in found:
        if block_rate != its_rate and resampler is not None:
            yield from out(resampler.resample(None))
            resampler = None
        if block_rate == rate:
            yield block
            continue
        if resampler is None:
            resampler, its_rate = av.AudioResampler(format="flt", layout="mono", rate=rate), block_rate
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block)[np.newaxis], format="flt", layout="mono")
        frame.sample_rate = block_rate
        yield from out(resampler.resample(frame))
    if resampler is not None:
        yield from out(resampler.resample(None))


def samples_of(data: bytes, rate: int, max_s: int) -> Any:
    """Mono samples of a file.

    Raises:
        RefusedError: it cannot be used.
    """
    import av
    import numpy as np

    form = format_of(data)
    if form == "wav" and is_cut(data):
        raise RefusedError("audio_parse_error", "is cut short")
    # A file that names others is refused by the options too.
    options = {"format_whitelist": f"{form},mov,mp4,m4a,3gp,3g2,mj2,matroska,webm", "protocol_whitelist": "none"}
    with av.open(io.BytesIO(data), format=form, container_options=options) as container:
        if not container.streams.audio:
            raise RefusedError("audio_parse_error", "has no audio")
        stream = container.streams.audio[0]
        # No thread is started: the process may have none.
        stream.codec_context.thread_count = 1
        stated = stream.duration * stream.time_base if stream.duration else (container.duration or 0) / 1_000_000
        if form in _TELL_LENGTH and stated > max_s:
            raise RefusedError("audio_too_long", f"is longer than {max_s} s (max_audio_seconds)")
        parts = list(resampled(blocks(frames(container, stream, form), max_s), rate))
    samples = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if form in _TELL_LENGTH and len(samples) / rate < stated - _SHORT_S:
        raise RefusedError("audio_parse_error", "is cut short or damaged")
    if not len(samples):
        raise RefusedError("audio_parse_error", "has no samples, or too few of them to resample")
    if not np.isfinite(samples).all():
        raise RefusedError("audio_parse_error", "has samples that are no numbers")
    return samples


def answer(source: BinaryIO, target: BinaryIO) -> bool:
    """Do one job; False at the end of the input."""
    head = source.read(JOB.size)
    if len(head) < JOB.size:
        return False
    length, rate, max_s = JOB.unpack(head)
    data = source.read(length)
    if len(data) < length:
        return False
    try:
        samples = samples_of(data, rate, max_s)
        target.write(b"S" + COUNT.pack(len(samples)))
        target.flush()
        if source.read(1) != b"G":
            return True
        target.write(b"P")
        target.write(samples.data)
    except RefusedError as refused:
        _refuse(target, *refused.args)
    except MemoryError:
        _refuse(target, "audio_too_long", "takes too much memory to decode")
    except Exception:
        _refuse(target, "audio_parse_error", "is cut short or damaged")
    target.flush()
    return True


def _refuse(target: BinaryIO, code: str, fault: str) -> None:
    target.write(b"E" + ERROR.pack(len(code), len(fault)) + code.encode() + fault.encode())


def load() -> None:
    """Import what the jobs need, before there is a file, and limits."""
    import av
    import numpy as np

    av.logging.set_level(None)
    # What is loaded where it is needed: the filters of a resampler.
    silence = av.AudioFrame.from_ndarray(np.zeros((1, 16), np.float32), format="flt", layout="mono")
    silence.sample_rate = 8000
    with contextlib.suppress(av.error.FFmpegError):
        av.AudioResampler(format="flt", layout="mono", rate=16000).resample(silence)
