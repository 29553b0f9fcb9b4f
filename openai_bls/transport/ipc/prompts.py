"""Prompt exchange between `openai_bls` and `preprocessing`: prompts in, token ids out, in any order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import EngineError, InvalidRequestError, OverloadedError
from openai_bls.transport.ipc.frames import GOODBYE, PING, Frames, pack
from openai_bls.transport.ipc.link import Link, PartState
from openai_bls.transport.ipc.listener import Listener

logger = logging.getLogger(__name__)

Prepare = Callable[[PromptRequest], PromptResult]

# A request that comes alone is prepared where it is read, which saves a thread's wake-up, if it has no more bytes than
# this (some 1 ms); a longer one in a pool, so that it holds nobody up.
_SHORT_BYTES = 8 * 1024

# Prepared for a client that only wants to know whether that works.
_PROBE = PromptRequest(prompts=["ready"])


class PromptCall(msgspec.Struct, frozen=True):
    """Request to `preprocessing`."""

    call_id: int
    request: bytes
    """A packed `PromptRequest`: one that cannot be unpacked must not cost the others their connection."""


class PromptAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of `preprocessing`; the first on a connection has the call_id 0 and says that it is there."""

    call_id: int
    result: PromptResult = PromptResult()
    failed: bool = False
    """Preparing it raised something that was not the request's fault."""


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
        address: of preprocessing, as `frames.address` gives it.
    """

    def __init__(self, address: str) -> None:
        self._calls: dict[int, asyncio.Future[PromptResult]] = {}
        self._last_id = 0
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
            InvalidRequestError: the request holds a value that cannot be passed on.
            OverloadedError: preprocessing is not there.
            EngineError: it failed.
        """
        payload = encode_request(request)
        await self._link.ready()
        self._last_id += 1
        call_id = self._last_id
        self._link.send(PromptCall(call_id, payload))
        answer: asyncio.Future[PromptResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        try:
            return await answer
        finally:
            self._calls.pop(call_id, None)

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
        if answer.failed:
            call.set_exception(EngineError("The prompt could not be prepared; see the server's log."))
        else:
            call.set_result(answer.result)

    def _lost(self) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(OverloadedError(self._link.why_closed))


class PromptExchangeServer:
    """Prepares prompts for every `openai_bls` instance.

    Args:
        address: to listen on, as `frames.address` gives it.
        prepare: from any thread, several at the same time.
        threads: that prepare long prompts.
    """

    def __init__(self, address: str, prepare: Prepare, threads: int) -> None:
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._listener = Listener("preprocessing model", address, self._connect)
        self._lock = threading.Lock()
        self._connections: list[_PromptConnection] = []

    def start(self) -> None:
        """Begin to serve."""
        self._listener.start()

    def close(self) -> None:
        """Hang up."""
        self._listener.close()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()
        self._pool.shutdown(cancel_futures=True)

    def _connect(self, accepted: socket.socket) -> None:
        connection = _PromptConnection(accepted, self._prepare, self._pool)
        with self._lock:
            # Those whose clients have gone are forgotten here.
            self._connections = [c for c in self._connections if c.alive] + [connection]
        connection.start()


class _PromptConnection:
    """One `openai_bls` instance."""

    def __init__(self, connection: socket.socket, prepare: Prepare, pool: ThreadPoolExecutor) -> None:
        self._socket = connection
        self._prepare = prepare
        self._pool = pool
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="prompt-read", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the client is connected."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._send(GOODBYE)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        decoder = msgspec.msgpack.Decoder(PromptCall)
        try:
            self._answer_with(PromptAnswer(0))
            frames = Frames()
            while data := self._socket.recv(65536):
                messages = frames.feed(data)
                calls = [decoder.decode(message) for message in messages if message != PING]
                if len(calls) < len(messages):
                    self._answer_ping()
                # Requests that arrive together are prepared in parallel.
                alone = len(calls) == 1 and len(calls[0].request) <= _SHORT_BYTES
                for call in calls:
                    if alone:
                        self._answer(call)
                    else:
                        self._pool.submit(self._answer, call)
        except (OSError, RuntimeError, msgspec.DecodeError) as error:
            logger.info("an openai_bls instance hung up: %s", error)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._sending:
            self._socket.close()

    def _answer_ping(self) -> None:
        try:
            self._prepare(_PROBE)
        except Exception:
            logger.exception("prompts cannot be prepared")
            return
        self._send(PING)

    def _answer(self, call: PromptCall) -> None:
        try:
            request = msgspec.msgpack.decode(call.request, type=PromptRequest)
            answer = PromptAnswer(call.call_id, self._prepare(request))
        except Exception:
            logger.exception("a prompt could not be prepared")
            answer = PromptAnswer(call.call_id, failed=True)
        # Unless the client has gone meanwhile.
        with contextlib.suppress(OSError):
            self._answer_with(answer)

    def _answer_with(self, answer: PromptAnswer) -> None:
        self._send(msgspec.msgpack.encode(answer))

    def _send(self, message: bytes) -> None:
        with self._sending:
            self._socket.sendall(pack(message))
