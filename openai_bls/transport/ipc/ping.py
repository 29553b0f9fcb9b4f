"""Ping exchange with a model that `openai_bls` sends no work: it says whether it answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable

import msgspec

from openai_bls.core.log_limit import LimitedWarnings
from openai_bls.transport.ipc.frames import GOODBYE, PING, FrameError, Frames, pack
from openai_bls.transport.ipc.link import Link, PartState
from openai_bls.transport.ipc.listener import MOST_CONNECTIONS, Listener, greeted

logger = logging.getLogger(__name__)

_HELLO = msgspec.msgpack.encode(True)


class PingClient:
    """Asks a model whether it answers. Belongs to the event loop's thread.

    Args:
        name: name of the model.
        address: address of the model, which `sockets.address` gives.
    """

    def __init__(self, name: str, address: str) -> None:
        self._link = Link(f"model {name}", address, bool, self._take, lambda: None)

    async def check(self, timeout_s: float) -> PartState:
        """Have the model do a little of its work."""
        return await self._link.check(timeout_s)

    async def close(self) -> None:
        """Hang up."""
        self._link.close()
        await self._link.wait_closed()

    def _take(self, _hello: bool, transport: asyncio.Transport) -> None:
        self._link.opened(transport)


class PingServer:
    """Answers every `openai_bls` instance.

    Args:
        name: name of the model.
        address: address of the listening socket, which `sockets.address` gives.
        work: a little of the model's work, done before each answer; raises if it fails.
    """

    def __init__(self, name: str, address: str, work: Callable[[], object]) -> None:
        self._name = name
        self._work = work
        self._listener = Listener(f"model {name}", address, self._connect)
        self._warnings = LimitedWarnings(logger)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    def start(self) -> None:
        """Begin to answer."""
        self._listener.start()

    def close(self) -> None:
        """Hang up."""
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.sendall(pack(GOODBYE))
                    connection.shutdown(socket.SHUT_RDWR)

    def _connect(self, accepted: socket.socket) -> None:
        with self._lock:
            if len(self._connections) >= MOST_CONNECTIONS:
                self._warnings.write("there are %d connections to %s: one more is closed", MOST_CONNECTIONS, self._name)
                accepted.close()
                return
            self._connections.add(accepted)
        threading.Thread(target=self._answer, args=(accepted,), name="ping", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        # Clients send nothing but pings.
        frames = Frames(len(PING))
        try:
            connection.sendall(pack(_HELLO))
            data = connection.recv(4096) if greeted(connection) else b""
            while data:
                if frames.feed(data) and self._works():
                    connection.sendall(pack(PING))
                data = connection.recv(4096)
        except (OSError, FrameError):
            # The client has gone, or is none.
            pass
        with self._lock:
            self._connections.discard(connection)
            connection.close()

    def _works(self) -> bool:
        try:
            self._work()
        except Exception:
            logger.exception("the model %s does not work", self._name)
            return False
        return True
