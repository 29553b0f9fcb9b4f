"""Engine end of the exchange: the engine's one listener, which routes every delta to its client."""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from openai_bls.core.engine import Engine, EngineStats, LoraError, PrefixCacheError
from openai_bls.core.engine_types import GenerationRequest, LoraUpdate, TokenDelta, UpdateResult
from openai_bls.core.log_limit import LimitedWarnings
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
from openai_bls.transport.ipc.listener import GREETING_S, MOST_CONNECTIONS, Listener, greeted
from openai_bls.transport.ipc.pixels import IMAGES_GONE, PIXELS_WAIT_S, PixelReceiver

logger = logging.getLogger(__name__)

DeltaSink = Callable[[TokenDelta], None]

# Connection 0 is the engine's own process: requests of the official contract.
_LOCAL = 0

# Seconds that a client has to read what is pending when the model is unloaded.
_GRACE_S = 5.0

# Seconds between two reports of the engine's load, while it changes.
_STATS_INTERVAL_S = 1.0

_MOST_UPDATES = 256
"""Updates and questions in one frame of a client, and updates of it that are under way."""
_MOST_QUEUED_BYTES = 64 * 1024 * 1024
"""Bytes of answers to a client that does not read them; with more it is hung up on."""
_TOO_MUCH_TO_PASS_ON = "The answer has more data than can be passed on."
_TOO_MANY_UPDATES = "too many adapters are being changed; try again later"


class Connection:
    """One client, an `openai_bls` instance for example: a thread that reads what it sends, and one that writes what it
    is slow to take.

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
            if self._unsent is not None:
                self._pending += deltas
                return
            frames, lost = self._frames(deltas)
            self._send(frames)
        for request_id in lost:
            self._engine.cancel(request_id)

    def tell(self, message: ServerFrame) -> None:
        """Send a frame of its own, or queue it."""
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
            self._unsent = frame[sent:]
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
                    frames, lost = self._frames(pending) if pending else (b"", [])
                    self._unsent = life + queued + frames or None
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
            self.answer(UpdateResult(_update_id(update), _TOO_MANY_UPDATES, busy=True))
        else:
            self._update(self, update)


def _update_id(update: LoraUpdate | int) -> int:
    return update.update_id if isinstance(update, LoraUpdate) else update


class ExchangeServer:
    """Routes between one engine and its clients.

    Args:
        address: address of the listening socket, which `sockets.address` gives; None listens nowhere, and `connect`
            brings the clients.
        restarts: number of restarts of this process, for the engine's stats.
    """

    def __init__(self, address: str | None, restarts: int = 0) -> None:
        self._listener = None if address is None else Listener("exchange", address, self._accepted)
        self._hand_over: Callable[[socket.socket], None] | None = None
        self._restarts = restarts
        self._warnings = LimitedWarnings(logger)
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._numbers = itertools.count(_LOCAL + 1)
        self._local: dict[int, DeltaSink] = {}
        self._local_ids = itertools.count(1)
        self._engine: Engine | None = None
        self._closing = threading.Event()
        # Loading takes seconds: one after the other, beside the requests.
        self._update_thread = ThreadPoolExecutor(1, "exchange-update")
        self._reporter = threading.Thread(target=self._report, name="exchange-stats", daemon=True)

    def start(self, engine: Engine, hand_over: Callable[[socket.socket], None] | None = None) -> None:
        """Begin to serve `engine`, which must have been constructed with `on_step` as its listener.

        Args:
            engine: the engine.
            hand_over: takes each accepted connection and serves it elsewhere; None serves it here.
        """
        self._engine = engine
        self._hand_over = hand_over
        if self._listener is not None:
            self._listener.start()
        self._reporter.start()

    def close(self) -> None:
        """Send every client what is pending and hang up. The engine is closed by its owner, before this."""
        self._closing.set()
        if self._listener is not None:
            self._listener.close()
        self._update_thread.shutdown(cancel_futures=True)
        if self._reporter.is_alive():
            self._reporter.join()
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        for connection in connections:
            connection.join()

    def on_step(self, deltas: Sequence[TokenDelta]) -> None:
        """Listener of the engine: called once per step, with the deltas of all requests."""
        by_connection: dict[int, list[TokenDelta]] = {}
        for delta in deltas:
            by_connection.setdefault(delta.request_id >> CONNECTION_SHIFT, []).append(delta)
        for number, group in by_connection.items():
            if number == _LOCAL:
                for delta in group:
                    self._deliver_local(delta)
                continue
            with self._lock:
                connection = self._connections.get(number)
            if connection is not None:
                connection.deliver(group)

    def submit_local(self, make: Callable[[int], GenerationRequest], sink: DeltaSink) -> int:
        """Submit a request of this process's own; its deltas go to `sink`, on the engine's thread."""
        assert self._engine is not None
        request_id = next(self._local_ids)
        self._local[request_id] = sink
        self._engine.submit(make(request_id))
        return request_id

    def cancel_local(self, request_id: int) -> None:
        """Cancel what `submit_local` submitted; its sink still gets the last delta."""
        assert self._engine is not None
        self._engine.cancel(request_id)

    def update_lora(self, name: str, path: str) -> None:
        """Load the adapter in the folder `path`, or unload it if that is empty, and tell every client.

        Raises:
            LoraError: it cannot be done.
        """
        assert self._engine is not None
        if path:
            self._engine.load_lora(name, path)
        else:
            self._engine.unload_lora(name)
        logger.info("the adapter %s is %s", name, "loaded" if path else "unloaded")
        with self._lock:
            frame = ServerFrame(info=self._engine.info, lora=LoraUpdate(0, name, path))
            for connection in self._connections.values():
                connection.tell(frame)

    def _take_update(self, connection: Connection, update: LoraUpdate | int) -> None:
        with contextlib.suppress(RuntimeError):  # it is closing, and so is the connection
            self._update_thread.submit(self._update, connection, update)

    def _update(self, connection: Connection, update: LoraUpdate | int) -> None:
        """Change an adapter, or reset the prefix cache, and answer the client."""
        assert self._engine is not None
        error, busy = None, False
        try:
            if isinstance(update, LoraUpdate):
                self.update_lora(update.name, update.path)
            else:
                self._engine.reset_prefix_cache()
        except LoraError as refusal:
            error = str(refusal)
        except PrefixCacheError as refusal:
            error, busy = str(refusal), refusal.busy
        except Exception:
            logger.exception("an adapter or the prefix cache could not be changed: %s", update)
            error = "The engine failed; its log says why."
        connection.answer(UpdateResult(_update_id(update), error, busy))

    def _deliver_local(self, delta: TokenDelta) -> None:
        sink = self._local.get(delta.request_id)
        if delta.finish_reason is not None:
            self._local.pop(delta.request_id, None)
        if sink is not None:
            try:
                sink(delta)
            except Exception:
                logger.exception("a stream of the official contract failed")

    def _report(self) -> None:
        assert self._engine is not None
        while not self._closing.wait(_STATS_INTERVAL_S):
            with self._lock:
                connections = list(self._connections.values())
            if not connections:
                continue
            try:
                stats = self.stats()
            except Exception:
                # The engine may be going away; nobody waits for this.
                logger.debug("the engine's load is not known", exc_info=True)
                continue
            for connection in connections:
                connection.report(stats)

    def stats(self) -> EngineStats:
        """The engine's load, with the restarts of this process."""
        assert self._engine is not None
        stats = self._engine.stats()
        return msgspec.structs.replace(stats, restarts=self._restarts) if self._restarts else stats

    def _accepted(self, accepted: socket.socket) -> None:
        if self._hand_over is None:
            self.connect(accepted)
        else:
            self._hand_over(accepted)

    def connect(self, accepted: socket.socket) -> Connection | None:
        """Serve a client over `accepted`, which belongs to the connection from now on; None if there are too many."""
        assert self._engine is not None
        number = next(self._numbers)
        with self._lock:
            if sum(connection.alive for connection in self._connections.values()) >= MOST_CONNECTIONS:
                self._warnings.write("there are %d connections to the engine: one more is closed", MOST_CONNECTIONS)
                accepted.close()
                return None
            # Within the lock: what it is told first is what the engine has, or a change of that follows.
            connection = Connection(number, accepted, self._engine, self._take_update, self.stats)
            # Those whose clients have gone are forgotten here.
            self._connections = {n: c for n, c in self._connections.items() if c.alive}
            self._connections[number] = connection
            # `close` waits for the threads of each connection that it finds.
            connection.start()
        return connection
