"""Client end of a connection between two models, made again whenever it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from openai_bls.core.errors import OverloadedError
from openai_bls.core.log_limit import LimitedWarnings
from openai_bls.core.processes.private_folder import PrivateFolderError
from openai_bls.transport.ipc import sockets
from openai_bls.transport.ipc.frames import GIVEN_UP, GOODBYE, PING, RESTARTING, Frames, pack
from openai_bls.transport.ipc.peers import ForeignPeerError

logger = logging.getLogger(__name__)

# Seconds between two attempts to connect: models load in any order, and one may be reloaded.
_RETRY_S = 0.1
# Seconds a request waits for a model that is being reloaded.
_WAIT_S = 5.0
# Seconds after which one that is connected and has not said a word is reported: nobody was ever heard there.
_HELLO_S = 5.0

SHUTTING_DOWN = "The server is shutting down."

PartState = Literal["up", "absent", "lost", "silent", "restarting", "failed", "foreign"]
"""State of a model at the other end: it answers; it was never there or has been unloaded; it has died; it is there and
does not answer; it is there and its engine's process is being started again; that is not started any more; another
user's process is in its place, which is told nothing."""

MessageT = TypeVar("MessageT")


class _Protocol(asyncio.Protocol):
    """Decodes what comes in."""

    def __init__(self, link: Link[Any]) -> None:
        self._link = link
        self._frames = Frames()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream socket's; uvloop's own class is not a subclass.
        self._transport = cast("asyncio.Transport", transport)
        # A greeting, which the other end waits for.
        self._transport.write(pack(PING))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._link.received(message, self._transport)
        except msgspec.DecodeError as error:
            self._link.misunderstood(error)
            self._transport.abort()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.writable.set()
        if not self.lost.done():
            self.lost.set_result(None)


class Link(Generic[MessageT]):
    """A connection to another model, made again whenever it is lost. Belongs to the event loop's thread.

    Args:
        name: name of the other end, for messages.
        address: address of the other end, which `sockets.address` gives.
        message: the type of what it sends.
        take: called with each message, and with the transport it came on; its first one marks the link as open with
            `opened`.
        on_lost: called when an open connection is lost.
    """

    def __init__(
        self,
        name: str,
        address: str,
        message: type[MessageT],
        take: Callable[[MessageT, asyncio.Transport], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._unavailable = f"The {name} is not available."
        self._name = name
        self._address = address
        self._take = take
        self._on_lost = on_lost
        self._decoder = msgspec.msgpack.Decoder(message)
        self._encoder = msgspec.msgpack.Encoder()
        self._transport: asyncio.Transport | None = None
        self._open_or_closed = asyncio.Event()
        self._died = False
        """The last connection ended without a goodbye."""
        self._waiting: PartState | None = None
        """State that the other end reports while it has no engine to connect this end with."""
        self._connected_at: float | None = None
        self._foreign = False
        self._warnings = LimitedWarnings(logger)
        self._pongs: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self._task = self._loop.create_task(self._run())

    @property
    def open(self) -> bool:
        """True while the other end is connected."""
        return self._transport is not None

    async def check(self, timeout_s: float) -> PartState:
        """Ask the other end for an answer.

        Args:
            timeout_s: seconds that it has.
        """
        if not self.open:
            if self._waiting is not None and not self.closed:
                return self._waiting
            return "absent" if self.closed else self._why_not_open
        pong = self._loop.create_future()
        self._pongs.add(pong)
        self._write(PING)
        done, _ = await asyncio.wait([pong], timeout=timeout_s)
        self._pongs.discard(pong)
        if not done:
            return "silent"
        return "up" if self.open else await self.check(timeout_s)

    @property
    def _why_not_open(self) -> PartState:
        if self._foreign:
            return "foreign"
        if self._died:
            return "lost"
        silent = self._connected_at is not None and self._loop.time() > self._connected_at + _HELLO_S
        return "silent" if silent else "absent"

    def misunderstood(self, error: msgspec.DecodeError) -> None:
        """Note that the other end has sent what cannot be read."""
        self._warnings.write("the %s sends what cannot be read: %s", self._name, error)

    def received(self, message: bytes, transport: asyncio.Transport) -> None:
        """Take a message of the other end."""
        if message == PING:
            self._answer_pongs()
        elif message == GOODBYE:
            self._died = False
        elif message in (RESTARTING, GIVEN_UP):
            self._waiting = "restarting" if message == RESTARTING else "failed"
        else:
            self._take(self._decoder.decode(message), transport)

    def opened(self, transport: asyncio.Transport) -> None:
        """Mark the link as open: the first message has come."""
        self._transport = transport
        self._waiting = None
        # Until it says goodbye.
        self._died = True
        self._open_or_closed.set()

    async def ready(self) -> None:
        """Wait for another end that is being reloaded.

        Raises:
            OverloadedError: it does not come back.
        """
        if not self.open and not self.closed:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._open_or_closed.wait(), _WAIT_S)
        if self.closed or not self.open:
            raise OverloadedError(self.why_closed)

    @property
    def why_closed(self) -> str:
        """Message to a client."""
        return SHUTTING_DOWN if self.closed else self._unavailable

    def send(self, message: Any) -> None:
        """Send a message; nothing happens if the other end is not there."""
        if self._transport is not None:
            self._write(self._encoder.encode(message))

    async def drained(self) -> None:
        """Wait until the other end has taken most of what was sent; others have a turn of the loop at least."""
        await asyncio.sleep(0)
        if self._transport is not None:
            await cast("_Protocol", self._transport.get_protocol()).writable.wait()

    def close(self) -> None:
        """Hang up once what was sent has gone out; `on_lost` is not called."""
        self.closed = True
        self._open_or_closed.set()
        self._task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of what `close` began."""
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            connection = self._connect()
            if connection is None:
                await asyncio.sleep(_RETRY_S)
                continue
            self._connected_at = self._loop.time()
            # Not create_unix_connection: if the other end has hung up already, uvloop (0.23) forgets that it has closed
            # the descriptor, and the socket closes it again when it may be another's.
            transport, protocol = await self._loop.connect_accepted_socket(lambda: _Protocol(self), connection)
            try:
                await protocol.lost
            finally:
                self._transport = self._waiting = self._connected_at = None
                self._open_or_closed.clear()
                # Not the socket, which is the transport's now: it still sends what is buffered.
                transport.close()
                self._answer_pongs()
            logger.warning("the connection to the %s is lost", self._name)
            self._on_lost()
            # No busy loop with an end that hangs up at once.
            await asyncio.sleep(_RETRY_S)

    def _connect(self) -> socket.socket | None:
        """A connection, if a process of this user listens; another's is told nothing."""
        try:
            connection = sockets.connect(self._address)
        except (ForeignPeerError, PrivateFolderError) as error:
            self._foreign = True
            self._warnings.write("the %s is not connected to, another user is in its place: %s", self._name, error)
        except OSError:
            self._foreign = False
        else:
            self._foreign = False
            return connection
        return None

    def _write(self, message: bytes) -> None:
        transport = self._transport
        # Between the end of a connection and `_run`, which hears of it a little later, writing is an error.
        if transport is not None and not transport.is_closing():
            transport.write(pack(message))

    def _answer_pongs(self) -> None:
        for pong in self._pongs:
            if not pong.done():
                pong.set_result(None)
