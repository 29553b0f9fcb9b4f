"""Prompt exchange between `openai_bls` and `preprocessing`, and its client: prompts in, token ids out, in any order."""

from __future__ import annotations

import asyncio

import msgspec

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import EngineError, InvalidRequestError, OverloadedError, TooLargeError
from openai_bls.core.keys.turns import FairLock
from openai_bls.transport.ipc.frames import MAX_FRAME_BYTES
from openai_bls.transport.ipc.link import Link, PartState

LONG_BYTES = 64 * 1024
"""Bytes above which requests are prepared one at a time: a megabyte takes a second and 200 MB."""


# With room for what is around it.
_MOST_BYTES = MAX_FRAME_BYTES - 1024


class PromptCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request to `preprocessing`."""

    call_id: int
    request: bytes | None
    """A packed `PromptRequest`: one that cannot be unpacked must not cost the others their connection. None takes the
    call back."""
    key: str = ""
    """Name of the request's API key, which is known before the request is unpacked."""


class PromptAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of `preprocessing`; the first on a connection has the call_id 0 and says that it is there."""

    call_id: int
    result: PromptResult = PromptResult()
    failed: bool = False
    """Preparing it raised something that was not the request's fault."""
    overloaded: str = ""
    """Why it was not prepared: too much of its key waits already."""


class SlowPromptError(Exception):
    """A prompt takes long to prepare: it is to be begun again on a thread that no other prompt waits for."""


# Made here: msgspec works out the types of a struct when they are first asked for, and two threads that ask at once, as
# those of several connections do, crash the process (0.22).
_TYPES_KNOWN = tuple(msgspec.msgpack.Decoder(kind) for kind in (PromptCall, PromptAnswer, PromptRequest))


def encode_request(request: PromptRequest) -> bytes:
    """`request` in MessagePack.

    Raises:
        InvalidRequestError: it holds a value that cannot be passed on.
    """
    try:
        return msgspec.msgpack.encode(request)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        # JSON text knows larger integers and half surrogate pairs.
        raise InvalidRequestError(f"The request holds a value that cannot be passed on: {error}") from None


class PromptExchangeClient:
    """Has prompts prepared. Belongs to the event loop's thread.

    Args:
        address: address of preprocessing, which `sockets.address` gives.
    """

    def __init__(self, address: str) -> None:
        self._calls: dict[int, asyncio.Future[PromptResult]] = {}
        self._last_id = 0
        # Long requests wait for their turn here, where giving up is easiest.
        self._long = FairLock()
        self._link = Link("preprocessing model", address, PromptAnswer, self._take, self._lost)

    @property
    def connected(self) -> bool:
        """True while preprocessing is connected."""
        return self._link.open

    async def check(self, timeout_s: float) -> PartState:
        """Have preprocessing prepare a word."""
        return await self._link.check(timeout_s)

    async def prepare(self, request: PromptRequest) -> PromptResult:
        """Token ids for `request`.

        Raises:
            InvalidRequestError: the request holds a value that cannot be passed on, or too many of them.
            OverloadedError: preprocessing is not there, or too much of the request's key waits for it.
            EngineError: it failed.
        """
        payload = encode_request(request)
        if len(payload) > _MOST_BYTES:
            raise TooLargeError(_MOST_BYTES, "the most that is passed on to preprocessing")
        if len(payload) <= LONG_BYTES:
            return await self._call(payload, request.key)
        # All at once: in the line each would wait for a lost model after the other.
        await self._link.ready()
        async with self._long.turn(request.key):
            return await self._call(payload, request.key)

    async def _call(self, payload: bytes, key: str) -> PromptResult:
        await self._link.ready()
        self._last_id += 1
        call_id = self._last_id
        self._link.send(PromptCall(call_id, payload, key))
        answer: asyncio.Future[PromptResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        try:
            return await answer
        finally:
            self._calls.pop(call_id, None)
            if answer.cancelled():
                self._link.send(PromptCall(call_id, None))

    async def close(self) -> None:
        """Hang up; pending calls end with an error."""
        self._link.close()
        self._lost()
        await self._link.wait_closed()

    def _take(self, answer: PromptAnswer, transport: asyncio.Transport) -> None:
        if answer.call_id == 0:
            self._link.opened(transport)
            return
        call = self._calls.get(answer.call_id)
        if call is None or call.done():
            return
        if answer.overloaded:
            call.set_exception(OverloadedError(answer.overloaded))
        elif answer.failed:
            call.set_exception(EngineError("The prompt could not be prepared; see the server's log."))
        else:
            call.set_result(answer.result)

    def _lost(self) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(OverloadedError(self._link.why_closed))
