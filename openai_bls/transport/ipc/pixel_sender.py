"""Pixels on the exchange, from `openai_bls`: ahead of the requests that share them, each image once, in pieces.

A frame is encoded, and decoded, with the interpreter's lock held. So an image of 48 MB in one frame would stop the
event loop of `openai_bls`, and the thread of the engine's steps, for tens of milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator

import msgspec

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.transport.ipc.frames import (
    MOST_PIXEL_BYTES,
    PIECE_BYTES,
    ClientFrame,
    FrameTooLargeError,
    PixelPiece,
    ServerFrame,
    SharedMedia,
)
from openai_bls.transport.ipc.link import Link


class _Upload:
    """Images of one prompt, and the requests that share it."""

    def __init__(self, media: MediaPrompt) -> None:
        self.media = media
        self.requests: dict[int, GenerationRequest] = {}
        """Requests by their ids, without their images."""


class PixelSender:
    """Sends requests with images, the images of one prompt after those of another. Belongs to the event loop's thread.

    Args:
        link: link to the engine.
        refuse: called with the ids of requests that are too large to be sent.
    """

    def __init__(self, link: Link[ServerFrame], refuse: Callable[[Collection[int]], None]) -> None:
        self._link = link
        self._refuse = refuse
        self._waiting: deque[_Upload] = deque()
        """Uploads in order; the first may be under way."""
        self._task: asyncio.Task[None] | None = None
        self._last_number = 0

    def put(self, request: GenerationRequest) -> None:
        """Take a request with images; those that are put in one turn of the loop share what they have in common."""
        media = request.media
        assert media is not None
        if not self._waiting or self._waiting[-1].media is not media:
            self._waiting.append(_Upload(media))
        self._waiting[-1].requests[request.request_id] = msgspec.structs.replace(request, media=None)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self, request_id: int) -> bool:
        """Forget a request; False if the engine has it already."""
        return any(upload.requests.pop(request_id, None) is not None for upload in self._waiting)

    def clear(self) -> None:
        """Forget all requests: the connection is lost."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self._waiting:
            await self._send(self._waiting[0])
            self._waiting.popleft()
        self._task = None

    async def _send(self, upload: _Upload) -> None:
        numbers: dict[str, int] = {}
        if sum(len(pixels) for pixels in {image.uuid: image.pixels for image in upload.media.images}.values()) > (
            MOST_PIXEL_BYTES
        ):
            self._refuse(list(upload.requests))
            return
        for image in upload.media.images:
            if image.uuid in numbers:
                continue
            self._last_number += 1
            numbers[image.uuid] = self._last_number
            for piece in _pieces(image, self._last_number):
                if not upload.requests:
                    self._link.send(ClientFrame(dropped=list(numbers.values())))
                    return
                self._link.send(ClientFrame(pixels=[piece]))
                await self._link.drained()
        bare = tuple(msgspec.structs.replace(image, pixels=b"") for image in upload.media.images)
        shared = SharedMedia(
            msgspec.structs.replace(upload.media, images=bare),
            [numbers[image.uuid] for image in bare],
            list(upload.requests),
        )
        try:
            self._link.send(ClientFrame(submissions=list(upload.requests.values()), media=[shared]))
        except FrameTooLargeError:
            self._refuse(list(upload.requests))
            self._link.send(ClientFrame(dropped=list(numbers.values())))


def _pieces(image: Image, number: int) -> Iterator[PixelPiece]:
    pixels = image.pixels
    for start in range(0, len(pixels), PIECE_BYTES):
        yield PixelPiece(number, pixels[start : start + PIECE_BYTES])
