"""Engine end of the exchange: the engine's one listener, which routes every delta to its client."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from openai_bls.core.engine import Engine, EngineStats, LoraError, PrefixCacheError
from openai_bls.core.engine_types import GenerationRequest, LoraUpdate, TokenDelta, UpdateResult
from openai_bls.core.log_limit import LimitedWarnings
from openai_bls.transport.ipc.connection import Connection, update_id
from openai_bls.transport.ipc.frames import CONNECTION_SHIFT, ServerFrame
from openai_bls.transport.ipc.listener import MOST_CONNECTIONS, Listener

logger = logging.getLogger(__name__)

DeltaSink = Callable[[TokenDelta], None]

# Connection 0 is the engine's own process: requests of the official contract.
_LOCAL = 0

# Seconds between two reports of the engine's load, while it changes.
_STATS_INTERVAL_S = 1.0


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
        connection.answer(UpdateResult(update_id(update), error, busy))

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
