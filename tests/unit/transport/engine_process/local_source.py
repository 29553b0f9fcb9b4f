"""Source of an engine's process that is this one: an exchange over a fake engine, which a test can lose."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.core.manifest import EngineLoadError
from openai_bls.transport.engine_process import handover
from openai_bls.transport.engine_process.source import ClosedError, DescriptorChannel, Opened
from openai_bls.transport.ipc.connection import Connection
from openai_bls.transport.ipc.server import ExchangeServer
from tests.unit.core_support import WAIT_S, FakeEngine, engine_info


class Taken:
    """A listener that keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.deltas: list[TokenDelta] = []

    def __call__(self, deltas: Sequence[TokenDelta]) -> None:
        with self.changed:
            self.deltas += deltas
            self.changed.notify_all()

    def ends(self) -> dict[int, TokenDelta]:
        return {delta.request_id: delta for delta in self.deltas if delta.finish_reason is not None}

    def wait_end(self, request_id: int) -> TokenDelta:
        with self.changed:
            assert self.changed.wait_for(lambda: request_id in self.ends(), WAIT_S)
        return self.ends()[request_id]


class LocalSource:
    """Args: info: of the engines, the first one's first; the last one's from then on."""

    limit: int | None = 3

    def __init__(self, *info: EngineInfo) -> None:
        self._info = list(info) or [engine_info()]
        self.engines: list[FakeEngine] = []
        self.refusal: str | None = None
        self.may_open = threading.Event()
        self.may_open.set()
        self.opened = threading.Condition()
        self.attempts = 0
        self._exchange: ExchangeServer | None = None
        self._connections: list[Connection] = []

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]

    def open(self, closing: threading.Event, restarts: int) -> Opened:
        with self.opened:
            self.attempts += 1
            self.opened.notify_all()
        assert self.may_open.wait(WAIT_S)
        if closing.is_set():
            raise ClosedError
        if self.refusal is not None:
            raise EngineLoadError(self.refusal)
        exchange = ExchangeServer(None, restarts)
        engine = FakeEngine(exchange.on_step, self._info.pop(0) if len(self._info) > 1 else self._info[0])
        exchange.start(engine)
        self._exchange = exchange
        ours, theirs = socket.socketpair()
        given, taken = socket.socketpair()

        def connect(accepted: socket.socket) -> Connection:
            connection = exchange.connect(accepted)
            assert connection is not None
            self._connections.append(connection)
            return connection

        self._connections = []
        connect(theirs)

        threading.Thread(target=handover.Handovers(connect).receive, args=[taken], daemon=True).start()
        with self.opened:
            self.engines.append(engine)
            self.opened.notify_all()
        return Opened(ours, DescriptorChannel(given))

    def lose(self) -> None:
        """As if the process had died."""
        for connection in self._connections:
            connection.abandon()

    def lost(self) -> str:
        return "the engine's process was lost"

    def kill(self) -> None:
        self.lose()

    def end(self) -> bool:
        if self.engines:
            self.engine.close()
        if self._exchange is not None:
            self._exchange.close()
        return True

    def close(self) -> None:
        with contextlib.suppress(IndexError):
            self.engine.close()

    def wait(self, condition: Callable[[], object]) -> None:
        with self.opened:
            assert self.opened.wait_for(condition, WAIT_S)


def request(request_id: int) -> GenerationRequest:
    return GenerationRequest(request_id, [1, 2], 5)
