"""The `openai_bls` end of the exchange: one connection on the event loop, for all requests of this instance."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from openai_bls.errors import OverloadedError
from openai_bls.exchange import LENGTH, ClientFrame, ServerFrame, new_socket, pack
from openai_bls.messages import EngineInfo, GenerationRequest, TokenDelta

logger = logging.getLogger(__name__)

DeltaListener = Callable[[TokenDelta], None]

# Models load in any order, and an engine may be reloaded: a missing one is looked for so often.
_RETRY_S = 0.1
# A request that comes while the engine is being reloaded waits for it so long.
_ENGINE_WAIT_S = 5.0

_UNAVAILABLE = "The engine is not available."
_SHUTTING_DOWN = "The server is shutting down."


class _Frames(asyncio.Protocol):
    """Cuts the incoming bytes into messages."""

    def __init__(self, client: ExchangeClient) -> None:
        self._client = client
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(ServerFrame)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream socket's; uvloop's own class is not a subclass.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, start)
            end = start + LENGTH.size + length
            if len(buffer) < end:
                break
            frame = self._decoder.decode(memoryview(buffer)[start + LENGTH.size : end])
            start = end
            self._client.take(frame, self._transport)
        del buffer[:start]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class ExchangeClient:
    """Submits requests to the engine and hands each its deltas.

    Belongs to the event loop's thread, where every listener is called: once a step the loop is woken, for all requests
    together. When the connection is lost, every live request ends with a "cancelled" delta that says why; the client
    goes on trying, so that a reloaded engine is found again.

    Args:
        address: of the engine, as `exchange.address` gives it.
        on_engine: called with the engine's info whenever a connection has been made.
    """

    def __init__(self, address: str, on_engine: Callable[[EngineInfo], None]) -> None:
        self._address = address
        self._on_engine = on_engine
        self._encoder = msgspec.msgpack.Encoder()
        self._listeners: dict[int, DeltaListener] = {}
        self._submissions: list[GenerationRequest] = []
        self._cancels: list[int] = []
        self._flush_scheduled = False
        # Set once the engine has introduced itself, for request ids begin at what it says.
        self._transport: asyncio.Transport | None = None
        self._found_or_closed = asyncio.Event()
        self._next_id = 1
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def live(self) -> int:
        """Requests that have a listener."""
        return len(self._listeners)

    @property
    def connected(self) -> bool:
        """Whether the engine is there."""
        return self._transport is not None

    async def ready(self) -> None:
        """Wait for the engine, if it is being reloaded just now.

        Raises:
            OverloadedError: it does not come back.
        """
        if self._transport is None and not self._closed:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._found_or_closed.wait(), _ENGINE_WAIT_S)
        if self._closed:
            raise OverloadedError(_SHUTTING_DOWN)
        if self._transport is None:
            raise OverloadedError(_UNAVAILABLE)

    def new_request_id(self) -> int:
        """An id that is unique among the engine's requests."""
        self._next_id += 1
        return self._next_id

    def submit(self, request: GenerationRequest, listener: DeltaListener) -> None:
        """Start a request; `listener` gets its deltas, the last of which has a finish_reason."""
        self._listeners[request.request_id] = listener
        if self._transport is None or self._closed:
            self._loop.call_soon(self._fail, [request.request_id], _SHUTTING_DOWN if self._closed else _UNAVAILABLE)
            return
        self._submissions.append(request)
        self._schedule_flush()

    def cancel(self, request_id: int) -> None:
        """Stop a request; its listener hears nothing more."""
        if self._listeners.pop(request_id, None) is not None:
            self._cancels.append(request_id)
            self._schedule_flush()

    def fail_all(self) -> None:
        """End every live request with a "cancelled" delta, and the engine's work on it."""
        request_ids = list(self._listeners)
        self._cancels += request_ids
        self._schedule_flush()
        self._fail(request_ids, _SHUTTING_DOWN)

    async def close(self) -> None:
        """Hang up; live requests end with a cancelled delta."""
        self._closed = True
        self._found_or_closed.set()
        self.fail_all()
        self._flush()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def take(self, frame: ServerFrame, transport: asyncio.Transport) -> None:
        """Hand out what a frame from `transport` brings."""
        if frame.info is not None:
            self._next_id = frame.id_base
            # Cancels meant for the engine before this one: a reloaded engine counts from the beginning again.
            self._submissions, self._cancels = [], []
            self._transport = transport
            self._found_or_closed.set()
            self._on_engine(frame.info)
        listeners = self._listeners
        for delta in frame.deltas:
            if delta.finish_reason is None:
                listener = listeners.get(delta.request_id)
            else:
                listener = listeners.pop(delta.request_id, None)
            if listener is not None:
                _tell(listener, delta)

    async def _run(self) -> None:
        while True:
            connection = new_socket()
            connection.setblocking(False)
            try:
                await self._loop.sock_connect(connection, self._address)
            except OSError:
                connection.close()
                await asyncio.sleep(_RETRY_S)
                continue
            transport, frames = await self._loop.create_unix_connection(lambda: _Frames(self), sock=connection)
            try:
                await frames.lost
            finally:
                self._transport = None
                self._found_or_closed.clear()
                # Not the socket, which is the transport's now: it still sends what is buffered.
                transport.close()
            logger.warning("the connection to the engine is lost")
            self._fail(list(self._listeners), _UNAVAILABLE)
            # Whoever hangs up at once is not asked again at once.
            await asyncio.sleep(_RETRY_S)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is not None and (self._submissions or self._cancels):
            frame = ClientFrame(submissions=self._submissions, cancels=self._cancels)
            self._transport.write(pack(self._encoder.encode(frame)))
            self._submissions, self._cancels = [], []

    def _fail(self, request_ids: list[int], message: str) -> None:
        for request_id in request_ids:
            listener = self._listeners.pop(request_id, None)
            if listener is not None:
                _tell(listener, TokenDelta(request_id, [], finish_reason="cancelled", error=message))


def _tell(listener: DeltaListener, delta: TokenDelta) -> None:
    """One listener's failure is not the others'."""
    try:
        listener(delta)
    except Exception:
        logger.exception("a response stream failed")
