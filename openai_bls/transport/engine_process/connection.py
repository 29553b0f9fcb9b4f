"""Triton's end of the exchange with an engine's process: frames in both directions, without waiting to send."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

import msgspec

from openai_bls.transport.ipc.frames import GOODBYE, PING, ClientFrame, Frames, ServerFrame, pack
from openai_bls.transport.ipc.prompt_blocks import BlockReceiver


class LostError(Exception):
    """The connection has ended."""


class SilentError(LostError):
    """The process is there and gives no sign of life."""


_PINGS = 3


class EngineConnection:
    """A connection to an engine's process that is ready.

    Args:
        connection: socket that this object owns from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = Frames()
        self._blocks = BlockReceiver()
        self._decoder = msgspec.msgpack.Decoder(ServerFrame)
        self._encoder = msgspec.msgpack.Encoder()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._changed = threading.Condition()
        self._unsent = b""
        """Bytes that did not fit into the socket, left to the writing thread."""
        self._closed = False
        self.orderly = False
        """The process has said goodbye."""
        self._writer = threading.Thread(target=self._write, name="engine-write", daemon=True)
        self._writer.start()
        # A greeting, which the other end waits for.
        self._send(PING)

    def send(self, message: ClientFrame) -> None:
        """Send a frame, or leave it to the writing thread; a lost connection is noticed by `receive`."""
        self._send(self._encoder.encode(message))

    def receive(self, silence_s: float) -> list[ServerFrame]:
        """The next frames; none may be a part of one, or a sign of life. For one thread.

        Args:
            silence_s: seconds without any sign of life after which the process is taken for hung.

        Raises:
            SilentError: the process hangs.
            LostError: the connection has ended.
        """
        for _ in range(_PINGS):
            if self._poll.poll(silence_s * 1000 / (_PINGS + 1)):
                return self._read()
            self._send(PING)
        # Looks and no clock: whoever was suspended along with the process has not looked.
        if self._poll.poll(silence_s * 1000 / (_PINGS + 1)):
            return self._read()
        raise SilentError("the engine's process gives no sign of life any more")

    def _read(self) -> list[ServerFrame]:
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            raise LostError
        found = []
        try:
            for message in self._frames.feed(data):
                if message == GOODBYE:
                    self.orderly = True
                elif message != PING:
                    frame = self._decoder.decode(message)
                    deltas = self._blocks.deltas(frame)
                    found.append(frame if deltas is frame.deltas else msgspec.structs.replace(frame, deltas=deltas))
        except msgspec.DecodeError:
            raise LostError from None
        return found

    def hang_up(self) -> None:
        """End the connection, which `receive` notices. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket and the thread, after the last `receive`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self.hang_up()
        self._writer.join()
        self._socket.close()

    def _send(self, message: bytes) -> None:
        frame = pack(message)
        with self._changed:
            if self._closed:
                return
            if self._unsent:
                self._unsent += frame
                return
            try:
                sent = self._socket.send(frame, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            self._unsent = frame[sent:]
            if self._unsent:
                self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._unsent and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                unsent = self._unsent
            try:
                self._socket.sendall(unsent)
            except OSError:
                return
            with self._changed:
                self._unsent = self._unsent[len(unsent) :]
