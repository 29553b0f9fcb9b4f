"""Pixels on the exchange, at the engine's end: images come in pieces, ahead of the requests that share them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.media import MediaPrompt
from openai_bls.transport.ipc.frames import MOST_PIXEL_BYTES, PIECE_BYTES, ClientFrame, FrameError, SharedMedia

PIXELS_WAIT_S = 120.0
"""Seconds without a frame after which images that no request has named are dropped."""
IMAGES_GONE = "The request's images took too long to come; try again."

# A piece costs some room, whatever it holds; those of real images are full but for the last one.
_PIECE_OVERHEAD_BYTES = 256
_MOST_HELD_BYTES = MOST_PIXEL_BYTES + MOST_PIXEL_BYTES // PIECE_BYTES * _PIECE_OVERHEAD_BYTES + (1 << 24)


class PixelReceiver:
    """Puts images together, for the engine's end of one connection."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[bytes]] = {}
        self.held_bytes = 0
        """Room of pieces that no request has named yet."""

    def submissions(self, frame: ClientFrame) -> tuple[Sequence[GenerationRequest], list[int]]:
        """The requests of a frame with their images, whose pixels they share; keeps what belongs to later ones.

        Returns:
            The requests, and the ids of those whose images are not there any more.

        Raises:
            FrameError: there are more pixels, or smaller pieces, than any end of this release sends.
        """
        for piece in frame.pixels:
            self.held_bytes += _room(piece.data)
            if self.held_bytes > _MOST_HELD_BYTES:
                raise FrameError("images that no request names")
            self._pieces.setdefault(piece.number, []).append(piece.data)
        for number in frame.dropped:
            self._take(number)
        if not frame.media:
            return frame.submissions, []
        media_of: dict[int, MediaPrompt] = {}
        gone: set[int] = set()
        for shared in frame.media:
            media = self._whole(shared)
            if media is None:
                gone.update(shared.request_ids)
            else:
                media_of.update(dict.fromkeys(shared.request_ids, media))
        found = [
            msgspec.structs.replace(request, media=media_of.get(request.request_id))
            for request in frame.submissions
            if request.request_id not in gone
        ]
        return found, sorted(gone)

    def forget(self) -> None:
        """Drop what no request has named."""
        self._pieces.clear()
        self.held_bytes = 0

    def _whole(self, shared: SharedMedia) -> MediaPrompt | None:
        numbers = set(shared.numbers)
        if len(shared.numbers) != len(shared.media.images):
            raise FrameError("images without numbers")
        whole = numbers <= self._pieces.keys()
        # Joined without the interpreter's lock from 1 MiB on.
        pixels = {number: b"".join(self._take(number)) for number in numbers}
        if not whole:
            return None
        images = tuple(
            msgspec.structs.replace(image, pixels=pixels[number])
            for image, number in zip(shared.media.images, shared.numbers, strict=True)
        )
        if any(len(image.pixels) != 3 * image.width * image.height for image in images):
            # The first pieces were dropped while the last were on their way.
            return None
        return msgspec.structs.replace(shared.media, images=images)

    def _take(self, number: int) -> list[bytes]:
        pieces = self._pieces.pop(number, [])
        self.held_bytes -= sum(map(_room, pieces))
        return pieces


def _room(data: bytes) -> int:
    return len(data) + _PIECE_OVERHEAD_BYTES
