"""Pieces of another model's answer, sent into a sink as the model gives them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from openai_bls.api.common.events.event_sink import ChunkSink
from openai_bls.api.common.events.unread import Unread
from openai_bls.api.common.one_shot import Tally


def event(sink: ChunkSink, text: bytes) -> bytes:
    """JSON text as an event of the sink."""
    return b"data: %b\n\n" % text if sink.sse else text


async def send(sink: ChunkSink, tally: Tally, pieces: AsyncGenerator[bytes, None]) -> None:
    """Write the pieces as they come.

    Args:
        sink: receiver of the pieces.
        tally: tally of the request, which is told when the first piece came.
        pieces: pieces of the answer, none of them empty; closed in the end.

    Raises:
        ApiError: the model failed, or the client reads too slowly.
    """
    unread = Unread(sink)
    async with aclosing(pieces):
        async for piece in pieces:
            if tally.first_token_at is None:
                tally.first_token_at = time.monotonic()
            unread.add(len(piece))
            sink.write(piece)
