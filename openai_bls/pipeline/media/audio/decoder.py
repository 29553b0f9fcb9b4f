"""Decoder of audio, in processes with limits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from openai_bls.core.processes.machine import AUDIO_DECODER
from openai_bls.core.processes.worker_pool import Worker, WorkerLostError
from openai_bls.pipeline.media.audio import decode_worker
from openai_bls.pipeline.media.decoder_pool import DecoderPool, Limits, Packages, Reserve, expect, go_on
from openai_bls.pipeline.media.errors import AudioCode, AudioError

PROCESSES = 2
"""Decoder processes: two, of which a key has one where there are several keys: a long file takes seconds."""
CPU_S = 20.0
"""Seconds of CPU time that a file may take; 25 minutes of Opus take some 6."""
TIME_LIMIT_S = 30.0
"""Seconds after which a process that decodes one file is killed."""
MAX_RATE = 48_000
"""Most samples per second that a model may take."""
SAMPLE_BYTES = 4
"""Bytes of a decoded sample."""

_BASE_BYTES = 512 * 1024 * 1024
# Samples and their parts, which are joined in the end.
_COPIES = 3
_SLICE = 256 * 1024


class AudioDecoder:
    """Decodes audio, as many files at a time as there are processes; see `DecoderPool`.

    Args:
        max_s: most seconds of audio.
        max_bytes: most bytes of an encoded file.
        processes: number of processes.
        time_limit_s: seconds after which a process that decodes one file is killed.
        several: tells whether there are several API keys, each of which leaves a process to others.
    """

    def __init__(
        self,
        max_s: int,
        max_bytes: int,
        processes: int = PROCESSES,
        time_limit_s: float = TIME_LIMIT_S,
        several: Callable[[], bool] = lambda: False,
    ) -> None:
        self._max_s = max_s
        memory_bytes = _BASE_BYTES + _COPIES * SAMPLE_BYTES * MAX_RATE * max_s + 3 * max_bytes
        packages = Packages("Audio", {"av": "av (the extra audio)", "numpy": "numpy"})
        limits = Limits(CPU_S, time_limit_s, memory_bytes)
        self._pool = DecoderPool(AUDIO_DECODER, Path(decode_worker.__file__), packages, limits, processes, several)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return self._pool.pids

    async def decode(self, data: bytes | memoryview, rate: int, reserve: Reserve, key: str = "") -> bytes:
        """Mono samples of a file, as 32-bit floats. Cancelling this leaves the process at work, within its limits.

        Args:
            data: the file as it came.
            rate: samples per second to make.
            reserve: called in a thread with the bytes of the samples, before they are read.
            key: name of the API key whose turn it is to be.

        Raises:
            AudioError: it cannot be used.
            ApiError: of `reserve`.
        """
        try:
            return await self._pool.decode(key, functools.partial(_decoded, data, rate, self._max_s, reserve))
        except WorkerLostError:
            raise AudioError("audio_parse_error", "takes too much time or memory to decode") from None

    def close(self) -> None:
        """Kill the processes."""
        self._pool.close()


def _decoded(data: bytes | memoryview, rate: int, max_s: int, reserve: Reserve, worker: Worker) -> bytes:
    worker.send(itertools.chain([decode_worker.JOB.pack(len(data), rate, max_s)], _slices(data)))
    (count,) = decode_worker.COUNT.unpack(_expect(worker, b"S", decode_worker.COUNT.size))
    go_on(worker, reserve, SAMPLE_BYTES * count)
    return _expect(worker, b"P", SAMPLE_BYTES * count)


def _slices(data: bytes | memoryview) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[at : at + _SLICE] for at in range(0, len(view), _SLICE))


def _expect(worker: Worker, kind: bytes, size: int) -> bytes:
    return expect(worker, kind, size, lambda code, fault: AudioError(cast("AudioCode", code), fault))
