"""Decoder of images, in processes with limits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

from openai_bls.core.media import Image
from openai_bls.core.processes.machine import IMAGE_DECODER
from openai_bls.core.processes.worker_pool import Worker, WorkerLostError
from openai_bls.pipeline.media import decode_worker
from openai_bls.pipeline.media.decoder_pool import DecoderPool, Limits, Packages, Reserve, expect, go_on
from openai_bls.pipeline.media.errors import ImageCode, ImageError

PROCESSES = 2
"""Decoder processes: two, of which a key has one where there are several keys: an image may take seconds."""
CPU_S = 10.0
"""Seconds of CPU time that an image may take."""
TIME_LIMIT_S = 15.0
"""Seconds after which a process that decodes one image is killed."""
BYTES_PER_PIXEL = 32
"""Memory of a decoder for each pixel: an image in up to four of its forms, and what its format needs."""
BASE_BYTES = 512 * 1024 * 1024
"""Memory of a decoder for an image of any size."""

# What is written at once: the interpreter's lock is held while so much text becomes bytes.
_SLICE = 256 * 1024
_DIGEST_BYTES = 32


class Encoded(NamedTuple):
    """An encoded image."""

    data: bytes | str | memoryview
    """Bytes of a file; a text, and a memoryview, which is of a request's body, is base64, from `start` on."""
    max_pixels: int
    start: int = 0
    side: int = 0
    """Side in pixels of the square to scale the image down to; 0 leaves its size."""
    max_bytes: int = 2**63 - 1

    @property
    def is_base64(self) -> bool:
        """True if `data` is base64."""
        return not isinstance(self.data, bytes)

    def slices(self) -> Iterator[bytes | memoryview]:
        """The bytes to decode, piece by piece."""
        data = self.data
        for at in range(self.start, len(data), _SLICE):
            piece = data[at : at + _SLICE]
            # What is not ASCII is no base64 either.
            yield piece.encode("ascii", "replace") if isinstance(piece, str) else piece

    @property
    def head(self) -> bytes:
        """Head of the job."""
        length = len(self.data) - self.start
        return decode_worker.JOB.pack(length, self.max_bytes, self.max_pixels, self.side, self.is_base64)


class Decoder:
    """Decodes images, as many at a time as there are processes; see `DecoderPool`.

    Args:
        max_pixels: most pixels of an image.
        max_bytes: most bytes of an encoded image.
        processes: number of processes.
        time_limit_s: seconds after which a process that decodes one image is killed.
        several: tells whether there are several API keys, each of which leaves a process to others.
    """

    def __init__(
        self,
        max_pixels: int,
        max_bytes: int,
        processes: int = PROCESSES,
        time_limit_s: float = TIME_LIMIT_S,
        several: Callable[[], bool] = lambda: False,
    ) -> None:
        memory_bytes = BASE_BYTES + BYTES_PER_PIXEL * max_pixels + 6 * max_bytes
        limits = Limits(CPU_S, time_limit_s, memory_bytes)
        packages = Packages("Images", {"PIL": "Pillow"})
        self._pool = DecoderPool(IMAGE_DECODER, Path(decode_worker.__file__), packages, limits, processes, several)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return self._pool.pids

    async def decode(self, encoded: Encoded, reserve: Reserve, key: str = "") -> Image:
        """The decoded image. Cancelling this leaves the process at work, within its limits; `reserve` can stop it.

        Args:
            encoded: the image as it came.
            reserve: called in a thread with the bytes of the pixels, before they are decoded.
            key: name of the API key whose turn it is to be.

        Raises:
            ImageError: it cannot be used.
            ApiError: of `reserve`.
        """
        try:
            return await self._pool.decode(key, functools.partial(_decoded, encoded, reserve))
        except WorkerLostError:
            raise _too_much() from None

    def close(self) -> None:
        """Kill the processes."""
        self._pool.close()


def _too_much() -> ImageError:
    return ImageError("image_parse_error", "takes too much time or memory to decode")


def _decoded(encoded: Encoded, reserve: Reserve, worker: Worker) -> Image:
    """The decoded image.

    Raises:
        ImageError: it cannot be used.
        ApiError: of `reserve`.
        WorkerLostError: the process has ended.
    """
    worker.send(itertools.chain([encoded.head], encoded.slices()))
    width, height = decode_worker.SIZE.unpack(_expect(worker, b"S", decode_worker.SIZE.size))
    pixels = width * height if not encoded.side else min(width * height, encoded.side**2)
    go_on(worker, reserve, 3 * pixels)
    head = _expect(worker, b"P", decode_worker.SIZE.size + _DIGEST_BYTES)
    width, height = decode_worker.SIZE.unpack(head[: decode_worker.SIZE.size])
    digest = head[decode_worker.SIZE.size :].hex()
    return Image(width, height, worker.read(3 * width * height), digest)


def _expect(worker: Worker, kind: bytes, size: int) -> bytes:
    return expect(worker, kind, size, lambda code, fault: ImageError(cast("ImageCode", code), fault))
