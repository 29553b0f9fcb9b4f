"""Decoder processes: each job goes to one of them, which is killed at a time limit and replaced when it has died."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, cast

from openai_bls.core.errors import EngineError, OverloadedError
from openai_bls.core.media import Image
from openai_bls.core.processes.process_tree import interpreter
from openai_bls.pipeline.media import decode_worker
from openai_bls.pipeline.media.errors import ImageCode, ImageError

logger = logging.getLogger(__name__)

PROCESSES = 2
"""Decoder processes: two, so that one large image does not hold up all others."""
TIME_LIMIT_S = 15.0
"""Seconds after which a process that decodes one image is killed."""
BYTES_PER_PIXEL = 32
"""Address space of a decoder for each pixel: an image in up to four of its forms, and what its format needs."""
BASE_BYTES = 512 * 1024 * 1024
"""Address space of a decoder for its libraries."""

# What is written at once: the interpreter's lock is held while so much text becomes bytes.
_SLICE = 256 * 1024
_DIGEST_BYTES = 32
_TOO_MUCH = ImageError("image_parse_error", "takes too much time or memory to decode")
# Of the server's environment: where a Python in an unusual place has its libraries.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PATH")


class Encoded(NamedTuple):
    """An encoded image."""

    data: bytes | str | memoryview
    """Bytes of a file; a text, and a memoryview, which is of a request's body, is base64, from `start` on."""
    max_pixels: int
    start: int = 0
    side: int = 0
    """Side in pixels of the square to scale the image down to; 0 leaves its size."""

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
        return decode_worker.JOB.pack(length, self.max_pixels, self.side, self.is_base64)


Reserve = Callable[[int], None]
"""Reserves the bytes of an image's pixels; raises ApiError."""


class _LostError(Exception):
    """The process has ended in the midst of a job."""


class _Process:
    """One decoder process. Belongs to one thread at a time.

    Args:
        address_space: most bytes of its address space.
    """

    def __init__(self, address_space: int) -> None:
        found = importlib.util.find_spec("PIL")
        if found is None or found.origin is None:
            raise EngineError("Images cannot be decoded: the server does not have the package Pillow.")
        folder = Path(found.origin).parent.parent
        script = str(Path(decode_worker.__file__))
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # Large blocks go back to the system when they are freed.
        environment["MALLOC_MMAP_THRESHOLD_"] = "131072"
        self._popen = subprocess.Popen(
            [interpreter(), "-I", "-S", script, str(folder), str(address_space)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            pipesize=1 << 20,
        )

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._popen.pid

    def kill(self) -> None:
        """Kill it; harmless if it has ended. From any thread."""
        self._popen.kill()

    def close(self) -> None:
        """Kill it, and wait for its end."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            # What it has not read any more is still to be written.
            with contextlib.suppress(OSError):
                cast("IO[bytes]", pipe).close()

    def decode(self, encoded: Encoded, reserve: Reserve) -> Image:
        """The decoded image.

        Raises:
            ImageError: it cannot be used.
            ApiError: of `reserve`.
            _LostError: the process has ended.
        """
        source, target = cast("IO[bytes]", self._popen.stdout), cast("IO[bytes]", self._popen.stdin)
        try:
            target.write(encoded.head)
            for piece in encoded.slices():
                target.write(piece)
            target.flush()
            width, height = decode_worker.SIZE.unpack(self._expect(source, b"S", decode_worker.SIZE.size))
            pixels = width * height if not encoded.side else min(width * height, encoded.side**2)
            try:
                reserve(3 * pixels)
            except BaseException:
                target.write(b"N")
                target.flush()
                raise
            target.write(b"G")
            target.flush()
            head = self._expect(source, b"P", decode_worker.SIZE.size + _DIGEST_BYTES)
            width, height = decode_worker.SIZE.unpack(head[: decode_worker.SIZE.size])
            digest = head[decode_worker.SIZE.size :].hex()
            return Image(width, height, _read(source, 3 * width * height), digest)
        except OSError:
            raise _LostError from None

    @staticmethod
    def _expect(source: IO[bytes], kind: bytes, size: int) -> bytes:
        """`size` bytes of an answer of that kind.

        Raises:
            ImageError: the answer is an error.
            _LostError: there is none.
        """
        found = _read(source, 1)
        if found == kind:
            return _read(source, size)
        code, fault = decode_worker.ERROR.unpack(_read(source, decode_worker.ERROR.size))
        raise ImageError(cast("ImageCode", _read(source, code).decode()), _read(source, fault).decode())


def _read(source: IO[bytes], size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise _LostError
    return data


class Decoder:
    """Decodes images, as many at a time as there are processes; these are started when they are needed.

    Args:
        max_pixels: most pixels of an image.
        max_bytes: most bytes of an encoded image.
        processes: number of processes.
        time_limit_s: seconds after which a process that decodes one image is killed.
    """

    def __init__(
        self, max_pixels: int, max_bytes: int, processes: int = PROCESSES, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        self._address_space = BASE_BYTES + BYTES_PER_PIXEL * max_pixels + 4 * max_bytes
        self._time_limit_s = time_limit_s
        self._threads = ThreadPoolExecutor(processes, "image")
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        with self._lock:
            return [process.pid for process in self._all]

    async def decode(self, encoded: Encoded, reserve: Reserve) -> Image:
        """The decoded image. Cancelling this leaves the process at work, within its limits; `reserve` can stop it.

        Args:
            encoded: the image as it came.
            reserve: called in a thread with the bytes of the pixels, before they are decoded.

        Raises:
            ImageError: it cannot be used.
            ApiError: of `reserve`.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._decode, encoded, reserve)

    def close(self) -> None:
        """Kill the processes."""
        with self._lock:
            self._closed = True
            running = list(self._all)
        for process in running:
            process.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _decode(self, encoded: Encoded, reserve: Reserve) -> Image:
        process = self._taken()
        whole = False
        timer = threading.Timer(self._time_limit_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            image = process.decode(encoded, reserve)
            whole = True
            return image
        except _LostError:
            logger.warning("a decoder of images has died, or was killed at its time limit")
            raise _TOO_MUCH from None
        except (ImageError, OverloadedError):
            whole = True
            raise
        finally:
            timer.cancel()
            self._put_back(process, whole=whole)

    def _taken(self) -> _Process:
        with self._lock:
            if self._closed:
                raise EngineError("The server is shutting down.")
            if self._idle:
                return self._idle.pop()
        process = _Process(self._address_space)
        with self._lock:
            self._all.add(process)
        return process

    def _put_back(self, process: _Process, *, whole: bool) -> None:
        with self._lock:
            if whole and not self._closed:
                self._idle.append(process)
                return
            self._all.discard(process)
        process.close()
