"""Pixels on the exchange, at the engine's end: images come in pieces, ahead of the requests that share them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.media import MediaPrompt
from openai_bls.transport.ipc.frames import ClientFrame, SharedMedia


class PixelReceiver:
    """Puts images together, for the engine's end of one connection."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[bytes]] = {}

    def submissions(self, frame: ClientFrame) -> Sequence[GenerationRequest]:
        """The requests of a frame with their images, whose pixels they share; keeps what belongs to later ones.

        Raises:
            KeyError: there is no such image.
        """
        for piece in frame.pixels:
            self._pieces.setdefault(piece.number, []).append(piece.data)
        for number in frame.dropped:
            self._pieces.pop(number, None)
        if not frame.media:
            return frame.submissions
        media_of: dict[int, MediaPrompt] = {}
        for shared in frame.media:
            media_of.update(dict.fromkeys(shared.request_ids, self._whole(shared)))
        return [
            msgspec.structs.replace(request, media=media_of.get(request.request_id)) for request in frame.submissions
        ]

    def _whole(self, shared: SharedMedia) -> MediaPrompt:
        # Joined without the interpreter's lock from 1 MiB on.
        pixels = {number: b"".join(self._pieces.pop(number)) for number in set(shared.numbers)}
        images = tuple(
            msgspec.structs.replace(image, pixels=pixels[number])
            for image, number in zip(shared.media.images, shared.numbers, strict=True)
        )
        return msgspec.structs.replace(shared.media, images=images)
