"""Engine end of one connection of the exchange: its frames, and what waits until the client reads them."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable

import msgspec

from openai_bls.core.engine import Engine, EngineStats
from openai_bls.core.engine_types import LoraUpdate, TokenDelta, UpdateResult
from openai_bls.transport.ipc.frames import (
    CONNECTION_SHIFT,
    GOODBYE,
    PING,
    ClientFrame,
    FrameError,
    Frames,
    FrameTooLargeError,
    ServerFrame,
    pack,
)
from openai_bls.transport.ipc.listener import GREETING_S, greeted
from openai_bls.transport.ipc.pixels import IMAGES_GONE, PIXELS_WAIT_S, PixelReceiver
from openai_bls.transport.ipc.prompt_blocks import BlockSender

logger = logging.getLogger(__name__)

# Seconds that a client has to read what is pending when the model is unloaded.
_GRACE_S = 5.0

_MOST_UPDATES = 256
"""Updates and questions in one frame of a client, and updates of it that are under way."""
_MOST_QUEUED_BYTES = 64 * 1024 * 1024
"""Bytes of answers to a client that does not read them; with more it is hung up on."""
_TOO_MUCH_TO_PASS_ON = "The answer has more data than can be passed on."
_TOO_MANY_UPDATES = "too many adapters are being changed; try again later"


class Connection:
    """Connection to one client: a thread reads its frames, another writes what the socket has no room for.

    A frame goes out on the engine's own thread if the socket has room, which it nearly always has: waking another
    thread for it would cost both the interpreter lock. Only what does not fit is left to the writing thread.
    """

    def __init__(
        self,
        number: int,
        connection: socket.socket,
        engine: Engine,
        update: Callable[[Connection, LoraUpdate | int], None],
        load: Callable[[], EngineStats],
    ) -> None:
        self._socket = connection
        self._engine = engine
        self._update = update
        self._load = load
        self._id_base = number << CONNECTION_SHIFT
        self._encoder = msgspec.msgpack.Encoder()
        self._changed = threading.Condition()
        self._pending: list[TokenDelta] = []
        self._blocks = BlockSender()
        """Blocks that go out one at a time, each before what is pending then."""
        self._queued = bytearray()
        """Frames that go out before what is pending."""
        self._pong_due = False
        """A sign of life goes out before them; one, however often it was asked for."""
        self._updates = 0
        """Updates that are under way."""
        # Bytes of a frame, or of its rest, that the writer has to send before anything else; None if there are none and
        # the writer sleeps.
        self._unsent: bytes | None = pack(self._encoder.encode(ServerFrame(info=engine.info, id_base=self._id_base)))
        self._images = PixelReceiver()
        self._live: set[int] = set()
        self._stats: EngineStats | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._write, name=f"exchange-write-{number}", daemon=True),
            threading.Thread(target=self._read, name=f"exchange-read-{number}", daemon=True),
        ]

    def start(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def deliver(self, deltas: list[TokenDelta]) -> None:
        """Send the deltas of a step, or queue them; never waits for the client."""
        with self._changed:
            if self._closed:
                return
            self._live.difference_update([d.request_id for d in deltas if d.finish_reason is not None])
            deltas = self._blocks.passed(deltas)
            if self._unsent is not None:
                self._pending += deltas
                return
            frames, lost = self._frames(deltas) if deltas else (b"", [])
            self._send(frames)
            if self._unsent is None and self._blocks.waiting:
                self._leave(b"")
        for request_id in lost:
            self._engine.cancel(request_id)

    def tell(self, message: ServerFrame) -> None:
        """Send a frame, or queue it."""
        self._tell(self._encoder.encode(message))

    def _tell(self, message: bytes) -> None:
        frame = pack(message)
        with self._changed:
            if self._closed:
                return
            if self._unsent is None:
                self._send(frame)
            elif len(self._queued) + len(frame) <= _MOST_QUEUED_BYTES:
                self._queued += frame
            else:
                logger.warning("an openai_bls instance asks and does not read the answers: it is hung up on")
                self.abandon()

    def _show_life(self) -> None:
        with self._changed:
            if self._closed:
                return
            if self._unsent is None:
                self._send(pack(PING))
            else:
                self._pong_due = True

    def answer(self, result: UpdateResult) -> None:
        """Answer an update that the client has asked for."""
        with self._changed:
            self._updates -= 1
        self.tell(ServerFrame(update=result))

    def report(self, stats: EngineStats) -> None:
        """Send the engine's load, unless the client has it or is slow to read."""
        with self._changed:
            if not self._closed and self._unsent is None and stats != self._stats:
                self._stats = stats
                self._send(pack(self._encoder.encode(ServerFrame(stats=stats))))

    def _send(self, frame: bytes) -> None:
        """Send what fits into the socket and leave the rest to the writer. With the lock, and nothing unsent."""
        try:
            sent = self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The client has gone; the reader notices too and cleans up.
            return
        if sent < len(frame):
            self._leave(frame[sent:])

    def _leave(self, unsent: bytes) -> None:
        """Leave the rest of a frame, and what comes after it, to the writer. With the lock."""
        self._unsent = unsent
        self._changed.notify()

    def close(self) -> None:
        """Send what is pending, then hang up."""
        self._tell(GOODBYE)
        with self._changed:
            self._closed = True
            self._changed.notify()

    def abandon(self) -> None:
        """Hang up at once, without a goodbye, as if this process had died."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def alive(self) -> bool:
        """True while the client is connected."""
        return not self._closed

    def join(self) -> None:
        """Wait for the threads, after `close`."""
        self._threads[0].join(_GRACE_S)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _frames(self, deltas: list[TokenDelta]) -> tuple[bytes, list[int]]:
        """Frames of the deltas, nearly always one; ids of requests whose delta fits into none and has become an
        error."""
        try:
            return pack(self._encoder.encode(ServerFrame(deltas=deltas))), []
        except FrameTooLargeError:
            pass
        if len(deltas) == 1:
            request_id = deltas[0].request_id
            self._live.discard(request_id)
            frames, _ = self._frames([TokenDelta(request_id, [], "error", error=_TOO_MUCH_TO_PASS_ON)])
            return frames, [request_id]
        half = len(deltas) // 2
        (first, lost), (second, also_lost) = self._frames(deltas[:half]), self._frames(deltas[half:])
        return first + second, lost + also_lost

    def _write(self) -> None:
        try:
            while True:
                with self._changed:
                    while self._unsent is None and not self._closed:
                        self._changed.wait()
                    unsent = self._unsent
                    if unsent is None:
                        break
                self._socket.sendall(unsent)
                with self._changed:
                    pending, self._pending = self._pending, []
                    queued, self._queued = bytes(self._queued), bytearray()
                    life, self._pong_due = pack(PING) if self._pong_due else b"", False
                    ahead = b""
                    if self._blocks.waiting:
                        block, behind = self._blocks.next()
                        ahead = pack(self._encoder.encode(ServerFrame(block=block)))
                        pending += behind
                    frames, lost = self._frames(pending) if pending else (b"", [])
                    self._unsent = life + queued + ahead + frames or None
                for request_id in lost:
                    self._engine.cancel(request_id)
        except OSError:
            # The client has gone; the reader notices too and cleans up.
            pass
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(ClientFrame)
        try:
            if not greeted(self._socket):
                raise FrameError(f"it has not said a word within {GREETING_S:g} s")
            frames = Frames()
            while data := self._receive():
                for message in frames.feed(data):
                    if message == PING:
                        self._show_life()
                    else:
                        self._take(decoder.decode(message))
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("an openai_bls instance hung up: %s", error)
        except Exception:
            logger.exception("a request of an openai_bls instance could not be taken")
        with self._changed:
            self._closed = True
            orphans, self._live = self._live, set()
            self._blocks = BlockSender()
            self._changed.notify()
        for request_id in orphans:
            self._engine.cancel(request_id)
        # Frees the writer if the client is there and does not read.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._socket.close()

    def _receive(self) -> bytes:
        if self._images.held_bytes:
            poll = select.poll()
            poll.register(self._socket.fileno(), select.POLLIN)
            if not poll.poll(PIXELS_WAIT_S * 1000):
                logger.warning("images that no request of an openai_bls instance names are dropped")
                self._images.forget()
        return self._socket.recv(65536)

    def _take(self, frame: ClientFrame) -> None:
        if len(frame.loras) + len(frame.prefix_resets) + len(frame.stats_queries) > _MOST_UPDATES:
            raise FrameError(f"more than {_MOST_UPDATES} updates and questions at once")
        submissions, imageless = self._images.submissions(frame)
        with self._changed:
            self._live.update(request.request_id for request in submissions)
            self._blocks.expect(submissions)
        if imageless:
            self.deliver([TokenDelta(i, [], "error", error=IMAGES_GONE) for i in imageless])
        for request in submissions:
            self._engine.submit(request)
        for request_id in frame.cancels:
            self._engine.cancel(request_id)
        updates: list[LoraUpdate | int] = [*frame.loras, *frame.prefix_resets]
        for update in updates:
            self._begin(update)
        for query_id in frame.stats_queries:
            self.tell(ServerFrame(stats=self._load(), update=UpdateResult(query_id, None)))

    def _begin(self, update: LoraUpdate | int) -> None:
        with self._changed:
            self._updates += 1
            too_many = self._updates > _MOST_UPDATES
        if too_many:
            self.answer(UpdateResult(update_id(update), _TOO_MANY_UPDATES, busy=True))
        else:
            self._update(self, update)


def update_id(update: LoraUpdate | int) -> int:
    """Number of an update, which a reset of the prefix cache is by itself."""
    return update.update_id if isinstance(update, LoraUpdate) else update
