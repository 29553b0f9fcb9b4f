"""As much of HTTP/2 as a gRPC client of a benchmark needs: requests out, messages in, at some 5 µs a message.

The `grpc` package takes over 100 µs for each message that it receives, several times what the server takes to make it,
and on shared cores that would be the measurement. The server is told never to wait for this end (windows of 2 GB) and
to send header fields in full (no table), so that a status is found without decoding the rest.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import cast

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 1, 2, 4
_WINDOW = (1 << 31) - 1
_DEFAULT_WINDOW = (1 << 16) - 1
_MAX_FRAME = 1 << 14
_FRAME = struct.Struct(">BHBBI")
_MESSAGE = struct.Struct(">BI")
# Before the server's view of the connection's window can run out.
_REPLENISH_BYTES = 1 << 30


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    length = len(payload)
    return _FRAME.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def header_block(fields: dict[str, str]) -> bytes:
    """Header fields as literals that are never put into a table; names and values below 127 bytes."""
    block = b""
    for name, value in fields.items():
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def literal_field(block: bytes, name: str) -> str:
    """The value of the literal field `name` in a header block, or an empty string."""
    _, found, rest = block.partition(bytes([len(name)]) + name.encode())
    return rest[1 : 1 + rest[0]].decode(errors="replace") if found and rest else ""


def split_messages(data: bytes) -> tuple[list[bytes], bytes]:
    """The gRPC messages in a stream's `data`, and what has come of the next one."""
    messages = []
    position, size = 0, len(data)
    while size - position >= _MESSAGE.size:
        _, length = _MESSAGE.unpack_from(data, position)
        end = position + _MESSAGE.size + length
        if end > size:
            break
        messages.append(data[position + _MESSAGE.size : end])
        position = end
    return messages, data[position:]


class GrpcConnection(asyncio.Protocol):
    """A connection with any number of calls. Subclasses say what becomes of messages and ends."""

    def __init__(self, authority: str, method: str) -> None:
        self._head = header_block(
            {
                ":method": "POST",
                ":scheme": "http",
                ":path": method,
                ":authority": authority,
                "te": "trailers",
                "content-type": "application/grpc",
            }
        )
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._parts: dict[int, bytes] = {}
        self._next_stream = 1
        self._received = 0
        # What may still be sent: on the connection, on a stream that is new, and on those with more to send.
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._windows: dict[int, int] = {}

    def messages(self, stream: int, messages: list[bytes]) -> None:
        """Messages have come."""
        raise NotImplementedError

    def ended(self, stream: int, problem: str) -> None:
        """A call has ended; `problem` is empty if its status was OK."""
        raise NotImplementedError

    def call(self, message: bytes) -> int:
        """Begin a call with one message; its stream's number."""
        assert self._transport is not None
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._parts[stream] = b""
        self._windows[stream] = self._stream_window
        self._transport.write(frame(_HEADERS, _END_HEADERS, stream, self._head))
        self._unsent.append((stream, _MESSAGE.pack(0, len(message)) + message))
        self._send()
        return stream

    def close(self) -> None:
        """Close without waiting."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this end."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        settings = {_HEADER_TABLE_SIZE: 0, _ENABLE_PUSH: 0, _INITIAL_WINDOW_SIZE: _WINDOW}
        payload = b"".join(struct.pack(">HI", *setting) for setting in settings.items())
        grow = frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW - _DEFAULT_WINDOW))
        self._transport.write(_PREFACE + frame(_SETTINGS, 0, 0, payload) + grow)

    def connection_lost(self, error: Exception | None) -> None:
        """Every open call has ended."""
        self._transport = None
        self._end_all("connection closed")

    def data_received(self, data: bytes) -> None:
        """Cut what comes into frames."""
        self._received += len(data)
        if self._received > _REPLENISH_BYTES:
            self._write(frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
            self._received = 0
        data = self._rest + data
        position, size = 0, len(data)
        while size - position >= _FRAME.size:
            high, low, kind, flags, stream = _FRAME.unpack_from(data, position)
            start = position + _FRAME.size
            end = start + (high << 16) + low
            if end > size:
                break
            self._take(kind, flags, stream, data[start:end])
            position = end
        self._rest = data[position:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            if stream in self._parts:
                if flags & _PADDED:
                    payload = payload[1 : len(payload) - payload[0]]
                messages, self._parts[stream] = split_messages(self._parts[stream] + payload)
                if messages:
                    self.messages(stream, messages)
        elif kind == _HEADERS and flags & _END_STREAM:
            status = literal_field(payload, "grpc-status")
            self._end(stream, "" if status == "0" else f"status {status} {literal_field(payload, 'grpc-message')}")
        elif kind == _RST_STREAM:
            self._end(stream, "reset by the server")
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._write(frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            self._widen(stream, int.from_bytes(payload, "big"))
        elif kind == _GOAWAY:
            self._end_all("the server is going away")

    def _widen(self, stream: int, more: int) -> None:
        if not stream:
            self._window += more
        elif stream in self._windows:
            self._windows[stream] += more
        self._send()

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW_SIZE:
                for stream in self._windows:
                    self._windows[stream] += value - self._stream_window
                self._stream_window = value
        self._write(frame(_SETTINGS, _ACK, 0))
        self._send()

    def _send(self) -> None:
        """Send as much as the windows allow, in order."""
        while self._unsent:
            stream, data = self._unsent[0]
            size = min(len(data), self._window, self._windows.get(stream, 0), _MAX_FRAME)
            if size <= 0:
                return
            last = size == len(data)
            self._write(frame(_DATA, _END_STREAM if last else 0, stream, data[:size]))
            self._window -= size
            self._windows[stream] -= size
            if last:
                self._unsent.popleft()
                del self._windows[stream]
            else:
                self._unsent[0] = stream, data[size:]

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _end_all(self, problem: str) -> None:
        for stream in list(self._parts):
            self._end(stream, problem)

    def _end(self, stream: int, problem: str) -> None:
        if self._parts.pop(stream, None) is not None:
            if self._unsent and stream in self._windows:
                self._unsent = deque(entry for entry in self._unsent if entry[0] != stream)
            self._windows.pop(stream, None)
            self.ended(stream, problem)
