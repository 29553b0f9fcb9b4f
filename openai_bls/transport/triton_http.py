"""Client of the HTTP front end of the tritonserver around this model, for what /v1's port passes on to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple

from openai_bls.core.errors import OverloadedError

# Bytes of the head of an answer, or of the line with a chunk's length.
_MAX_LINE_BYTES = 64 * 1024
# Bytes of an answer that are read at once.
_READ_BYTES = 64 * 1024


class FrontEndAnswer(NamedTuple):
    """Answer of the front end."""

    status: int
    content_type: str
    body: AsyncIterator[bytes]
    """Pieces of the body as they come."""
    close: Callable[[], None]
    """Closes the connection, whether the body has been read or not."""


class TritonHttp:
    """Front end of one tritonserver. No connection stays open: a server that stops waits for them.

    Args:
        host: host of the front end.
        port: port of the front end.
        control_headers: headers that the model repository's API wants.
    """

    def __init__(self, host: str, port: int, control_headers: Mapping[str, str]) -> None:
        self._host = host
        self.port = port
        self._control_headers = control_headers

    async def index(self, body: bytes) -> FrontEndAnswer:
        """Models of the repository and their states; raises as `post`."""
        return await self.post("/v2/repository/index", body, self._control_headers)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> FrontEndAnswer:
        """Answer to a request.

        Raises:
            OverloadedError: the front end does not answer.
        """
        given = {
            "Host": f"{self._host}:{self.port}", "Content-Type": "application/json",
            "Content-Length": str(len(body)), "Connection": "close", **(headers or {}),
        }  # fmt: skip
        head = "".join(
            [f"POST {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in given.items()), "\r\n"]
        )
        writer = None
        try:
            reader, writer = await asyncio.open_connection(self._host, self.port, limit=_MAX_LINE_BYTES)
            writer.write(head.encode("latin-1") + body)
            await writer.drain()
            status, fields = _head(await reader.readuntil(b"\r\n\r\n"))
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            if writer is not None:
                writer.close()
            raise OverloadedError("Triton's HTTP port does not answer; try again later.") from None
        except asyncio.CancelledError:
            if writer is not None:
                writer.close()
            raise
        kind = fields.get("content-type", "application/json")
        return FrontEndAnswer(status, kind, _body(reader, fields), writer.close)


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split(" ")[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> AsyncIterator[bytes]:
    if fields.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readline()
    else:
        left = int(fields.get("content-length", "0"))
        while left:
            piece = await reader.read(min(left, _READ_BYTES))
            if not piece:
                return
            left -= len(piece)
            yield piece
