"""One scrape sees all `openai_bls` instances of a tritonserver, whichever of them it reaches.

They share the port of /v1, so that a scrape reaches any. Each listens on an abstract Unix address of its own, which the
others find in the kernel's table; whoever connects is told the instance's metrics, in MessagePack. Anybody on the
machine may take such an address or connect to it, so that both ends see that the other belongs to this user.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from pathlib import Path

import msgspec

from openai_bls.pipeline.metrics import Family, Metrics
from openai_bls.transport.ipc.frames import address, new_socket
from openai_bls.transport.ipc.listener import is_ours

logger = logging.getLogger(__name__)

# An instance that does not answer by then is left out.
_WAIT_S = 1.0
# Thousands of series are a megabyte.
_MAX_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_ACCEPTING = 0x10000

_numbers = itertools.count()


class Peers:
    """This instance among the others. Belongs to the event loop's thread.

    Args:
        metrics: of this instance.
        owner: process id of the tritonserver.
    """

    def __init__(self, metrics: Metrics, owner: int) -> None:
        self._metrics = metrics
        self._family = address("metrics", owner)
        self._own = f"{self._family}/{os.getpid()}-{next(_numbers)}"
        self._socket = new_socket()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to answer the others, and to ask them at each scrape."""
        self._socket.bind(self._own)
        self._server = await asyncio.start_unix_server(self._tell, sock=self._socket)
        self._metrics.others = self.ask

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def ask(self) -> list[list[Family]]:
        """What each of the others says just now."""
        return await asyncio.gather(*(self._ask(path) for path in _listening(self._family) if path != self._own))

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_ours(writer.get_extra_info("socket")):
            with contextlib.suppress(OSError):
                writer.write(msgspec.msgpack.encode(self._metrics.families()))
                await writer.drain()
        else:
            logger.warning("a process of another user was turned away from the metrics")
        writer.close()

    async def _ask(self, path: str) -> list[Family]:
        try:
            content = await asyncio.wait_for(_read(path), _WAIT_S)
            return msgspec.msgpack.decode(content, type=list[Family])
        except (OSError, asyncio.TimeoutError, TimeoutError, msgspec.MsgspecError) as error:
            logger.warning("an instance's metrics are missing from a scrape: %r", error)
            return []


async def _read(path: str) -> bytes:
    """What the instance at `path` says.

    Raises:
        OSError: it is not there, of another user, or says too much.
    """
    connection = new_socket()
    connection.setblocking(False)
    try:
        # uvloop connects to no abstract address by itself.
        await asyncio.get_running_loop().sock_connect(connection, path)
        if not is_ours(connection):
            raise PermissionError("it is a process of another user")
        reader, writer = await asyncio.open_unix_connection(sock=connection)
    except BaseException:
        connection.close()
        raise
    try:
        content = bytearray()
        while chunk := await reader.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > _MAX_BYTES:
                raise OSError(f"it sent more than {_MAX_BYTES} bytes")
        return bytes(content)
    finally:
        writer.close()


def _listening(family: str) -> list[str]:
    """The addresses below `family` that somebody listens on."""
    shown = family.replace("\0", "@") + "/"
    found = set()
    for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
        # Num RefCount Protocol Flags Type St Inode Path
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith(shown) and int(fields[3], 16) & _ACCEPTING:
            found.add("\0" + fields[7][1:])
    return sorted(found)
