"""Publisher of KV events: a ZMQ PUB socket, and a ROUTER socket that sends missed batches again, as in vLLM.

A message has three frames: topic, sequence number (8 bytes, big-endian) and batch. A consumer that has missed some
sends the first number that it wants, with an empty frame before it, from a DEALER socket, and gets each batch that is
kept, with the topic, and at last the number -1. The engine's thread only fills a queue; sockets have threads of theirs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from openai_bls.core import installing
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.kv_events.events import AllBlocksCleared, Event, EventBatch

logger = logging.getLogger(__name__)

BUFFER_BATCHES = 10_000
"""Batches that are kept for consumers that missed them, vLLM's default of `buffer_steps`."""
BUFFER_BYTES = 64 * 2**20
"""Most bytes of these."""
MAX_QUEUED_BATCHES = 100_000
HIGH_WATER_MARK = 100_000
"""Messages that wait for one consumer, which misses those beyond it."""
_END = (-1).to_bytes(8, "big", signed=True)
_NUMBER_BYTES = 8


class KvEventsConfig(msgspec.Struct, frozen=True):
    """Sockets and topic of the publisher of KV events."""

    endpoint: str
    """Address of the PUB socket: `tcp://*:5557` binds, `tcp://host:5557` connects."""
    replay_endpoint: str = ""
    """Address at which the ROUTER socket binds; empty is none."""
    topic: str = ""
    """Topic of all messages; gateways expect `kv@POD@MODEL`."""


def config_of(endpoint: str, replay_endpoint: str, topic: str) -> KvEventsConfig | None:
    """The options of an engine as a configuration; None if no events are published.

    Raises:
        EngineLoadError: an option without the endpoint, or the package for ZMQ is missing.
    """
    if not endpoint:
        if replay_endpoint or topic:
            raise EngineLoadError(
                "kv_events_replay_endpoint and kv_events_topic need kv_events_endpoint, which is not set: "
                "set it, tcp://*:5557 for example, or leave them out"
            )
        return None
    if importlib.util.find_spec("zmq") is None:
        raise EngineLoadError(
            "kv_events_endpoint needs the package pyzmq, which this Python does not have: "
            + installing.with_extra("kv-events")
        )
    return KvEventsConfig(endpoint, replay_endpoint, topic)


class KvEventPublisher:
    """Publishes batches in order, each with the next sequence number; the first one says that the cache is empty."""

    def __init__(self, config: KvEventsConfig) -> None:
        """Open the sockets.

        Raises:
            EngineLoadError: an endpoint cannot be bound or connected to.
        """
        import zmq  # an optional package

        self._topic = config.topic.encode()
        self._queue: queue.Queue[tuple[int, EventBatch] | None] = queue.Queue(MAX_QUEUED_BATCHES)
        self._next_number = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._lock = threading.Lock()
        """Guards what is kept."""
        self._closed = False
        self._context = zmq.Context()
        self._threads: list[threading.Thread] = []
        try:
            self._pub = self._context.socket(zmq.PUB)
            self._pub.set_hwm(HIGH_WATER_MARK)
            _open(self._pub, "kv_events_endpoint", config.endpoint, binds=_binds(config.endpoint))
            self.endpoint = _address(self._pub, config.endpoint)
            self.replay_endpoint = ""
            if config.replay_endpoint:
                router = self._context.socket(zmq.ROUTER)
                _open(router, "kv_events_replay_endpoint", config.replay_endpoint, binds=True)
                self.replay_endpoint = _address(router, config.replay_endpoint)
                self._threads.append(threading.Thread(target=self._replay, args=(router,), daemon=True))
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._threads.append(threading.Thread(target=self._publish, name="kv-events", daemon=True))
        for thread in self._threads:
            thread.start()
        self.publish([AllBlocksCleared()])

    def publish(self, events: Sequence[Event]) -> None:
        """Publish the events of a step; from one thread at a time. Never waits.

        A batch for which the queue has no room is dropped, and its number with it: consumers see the gap.
        """
        number = self._next_number
        self._next_number += 1
        try:
            self._queue.put_nowait((number, EventBatch(time.time(), list(events), 0)))
        except queue.Full:
            logger.warning("KV events of step %d are lost: %d batches wait to be published", number, MAX_QUEUED_BATCHES)

    def close(self) -> None:
        """Publish what waits, and close the sockets. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._threads[-1].join()
        # Ends the other thread's wait, which then closes its socket.
        self._context.term()
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        while (item := self._queue.get()) is not None:
            number, batch = item
            payload = encoder.encode(batch)
            self._keep(number, payload)
            self._pub.send_multipart((self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload))
        self._pub.close(linger=1000)

    def _keep(self, number: int, payload: bytes) -> None:
        with self._lock:
            self._kept.append((number, payload))
            self._kept_bytes += len(payload)
            while len(self._kept) > BUFFER_BATCHES or self._kept_bytes > BUFFER_BYTES:
                self._kept_bytes -= len(self._kept.popleft()[1])

    def _replay(self, router: Any) -> None:
        import zmq

        with contextlib.suppress(zmq.ContextTerminated):
            while True:
                client, *rest = router.recv_multipart()
                if len(rest) != 2 or rest[0] or len(rest[1]) != _NUMBER_BYTES:
                    logger.warning("a replay of KV events was asked for in another form than vLLM's: ignored")
                    continue
                first = int.from_bytes(rest[1], "big")
                with self._lock:
                    missed = [(number, payload) for number, payload in self._kept if number >= first]
                for number, payload in missed:
                    router.send_multipart((client, b"", self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload))
                router.send_multipart((client, b"", b"", _END, b""))
        router.close(linger=0)


def _binds(endpoint: str) -> bool:
    """Whether a PUB socket binds an endpoint rather than connecting to it; vLLM's rule."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _open(socket: Any, option: str, endpoint: str, *, binds: bool) -> None:
    import zmq

    try:
        (socket.bind if binds else socket.connect)(endpoint)
    except zmq.ZMQError as error:
        raise EngineLoadError(f"{option} {endpoint!r} cannot be used: {error}") from None


def _address(socket: Any, endpoint: str) -> str:
    """The endpoint with the port that the system chose for port 0."""
    import zmq

    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0") or endpoint
