"""Engine in a separate process, as Triton's stub has it: its requests, its adapters, and its return after a loss."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from openai_bls.core.engine import EngineStats, LoraError, PrefixCacheError, StepListener
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, LoraUpdate, TokenDelta, UpdateResult
from openai_bls.core.log_limit import LimitedWarnings
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.capabilities import ENGINE_FAILED, refusal
from openai_bls.engines.command_queue import emit
from openai_bls.transport.engine_process.connection import EngineConnection, LostError, SilentError
from openai_bls.transport.engine_process.source import Channel, ClosedError, EngineSource, Opened
from openai_bls.transport.engine_process.supervision import RestartPolicy
from openai_bls.transport.ipc.frames import GIVEN_UP, RESTARTING, ClientFrame, ServerFrame, pack
from openai_bls.transport.ipc.listener import MOST_CONNECTIONS, has_hung_up

logger = logging.getLogger(__name__)

_UPDATE_S = 600.0  # for an adapter to be loaded
_STATS_S = 5.0
_AWAY = "the engine's process is not there; it is being started again"


class _Question:
    """An update or a question that the process has not answered."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.result: UpdateResult | None = None
        """Answer to the update; None if the process was lost meanwhile."""


class ProcessEngine:
    """An `Engine` whose work is done by another process, which is supervised.

    A request that is submitted while the process is not there is answered with an error from the caller's thread.

    Args:
        source: starts the process or connects to it.
        on_step: the listener.
        silence_s: seconds without any sign of life after which the process is taken for hung.

    Raises:
        EngineLoadError: the engine cannot be loaded; one sentence.
    """

    def __init__(self, source: EngineSource, on_step: StepListener, silence_s: float) -> None:
        self._source = source
        self._on_step = on_step
        self._silence_s = silence_s
        self._policy = RestartPolicy(source.limit)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        # The listener is called by one thread at a time.
        self._emitting = threading.RLock()
        self._connection: EngineConnection | None = None
        self._channel: Channel | None = None
        self._id_base = 0
        self._live: set[int] = set()
        self._questions: dict[int, _Question] = {}
        self._question_ids = itertools.count(1)
        self._warnings = LimitedWarnings(logger)
        self._waiting: list[socket.socket] = []
        """Accepted connections, while there is no process to hand them to."""
        self._adapters: dict[str, str] = {}
        """Adapters loaded at run time, by name: their folders; empty for one that was unloaded."""
        self._stats = EngineStats(0, 0, 0.0, 0, 0)
        self._given_up = False
        self._restarts = 0
        self._info: EngineInfo | None = None
        begun = time.monotonic()
        self._attach(source.open(self._closing, 0))
        logger.info("the engine's process is ready after %.1f s", time.monotonic() - begun)
        self._thread = threading.Thread(target=self._run, name="engine-process", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        """Identity, limits and capabilities, as the process says."""
        assert self._info is not None
        return self._info

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closing.is_set()

    def submit(self, request: GenerationRequest) -> None:
        """Take a request; an id that is already live is ignored, so that one id has one end."""
        request_id = request.request_id
        with self._lock:
            connection = self._connection
            if request_id in self._live:
                logger.warning("request id %d is already live: ignored", request_id)
                return
            if connection is not None and not self._closing.is_set():
                changed = msgspec.structs.replace(request, request_id=self._id_base + request_id)
                with contextlib.suppress(OverflowError):
                    connection.send(ClientFrame(submissions=[changed]))
                    self._live.add(request_id)
                    return
        if self._closing.is_set():
            self._emit([TokenDelta(request_id, [], "cancelled")])
        elif connection is not None:
            # A number, or so much, that no frame can hold.
            problem = refusal(request, self.info) or "the request has a number that is too large, or too much data"
            self._emit([TokenDelta(request_id, [], "error", error=problem, invalid=True)])
        else:
            self._emit([TokenDelta(request_id, [], "error", error=ENGINE_FAILED)])

    def cancel(self, request_id: int) -> None:
        """Stop a request soon."""
        with self._lock:
            if self._connection is not None and request_id in self._live:
                self._connection.send(ClientFrame(cancels=[self._id_base + request_id]))

    def stats(self) -> EngineStats:
        """The load, asked of the process; the last known if it does not answer."""
        with contextlib.suppress(EngineLoadError):
            if threading.current_thread() is not self._thread:
                self._ask(lambda number: ClientFrame(stats_queries=[number]), _STATS_S)
        stats = self._stats
        if self._connection is None:
            stats = msgspec.structs.replace(stats, running=0, waiting=0, kv_cache_usage=0.0, failed=self._given_up)
        return stats

    def load_lora(self, name: str, path: str) -> None:
        """Load an adapter; it is loaded again whenever the process was started again."""
        self._update(name, path)

    def unload_lora(self, name: str) -> None:
        """Unload an adapter."""
        self._update(name, "")

    def reset_prefix_cache(self) -> None:
        """Forget the cached prompts."""
        try:
            result = self._ask(lambda number: ClientFrame(prefix_resets=[number]), _UPDATE_S)
        except EngineLoadError as error:
            raise PrefixCacheError(str(error), busy=True) from None
        if result.error is not None:
            raise PrefixCacheError(result.error, busy=result.busy)

    def adopt(self, accepted: socket.socket) -> None:
        """Have the process serve an accepted connection of an `openai_bls` instance; later, if it is not there."""
        with self._lock:
            if self._closing.is_set():
                accepted.close()
                return
            if self._channel is not None:
                with contextlib.suppress(OSError):
                    self._channel.give(accepted)
                    return
            self._keep_waiting(accepted)

    def close(self) -> None:
        """End every live request with "cancelled", and the process if it was started here."""
        with self._lock:
            first = not self._closing.is_set()
            self._closing.set()
            connection, channel = self._connection, self._channel
        if first and not self._source.end():
            # Somebody else's goes on: without us, and without the connections that came through us.
            if channel is not None:
                channel.close(orderly=True)
            if connection is not None:
                connection.hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _emit(self, deltas: list[TokenDelta]) -> None:
        with self._emitting:
            emit(self._on_step, deltas)

    def _update(self, name: str, path: str) -> None:
        try:
            result = self._ask(lambda number: ClientFrame(loras=[LoraUpdate(number, name, path)]), _UPDATE_S)
        except EngineLoadError as error:
            raise LoraError(str(error)) from None
        if result.error is not None:
            raise LoraError(result.error)

    def _ask(self, frame: Callable[[int], ClientFrame], timeout_s: float) -> UpdateResult:
        """The process's answer.

        Raises:
            EngineLoadError: it is not there, is lost meanwhile, or does not answer in time.
        """
        question = _Question()
        number = next(self._question_ids)
        with self._lock:
            if self._connection is None or self._closing.is_set():
                raise EngineLoadError(_AWAY)
            self._questions[number] = question
            self._connection.send(frame(number))
        try:
            question.answered.wait(timeout_s)
        finally:
            with self._lock:
                self._questions.pop(number, None)
        if question.result is None:
            raise EngineLoadError(_AWAY)
        return question.result

    def _run(self) -> None:
        ready_at = time.monotonic()
        while True:
            assert self._connection is not None
            self._serve(self._connection)
            self._detach()
            if self._closing.is_set() or not self._return(time.monotonic() - ready_at):
                break
            ready_at = time.monotonic()
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for accepted in waiting:
            accepted.close()
        self._source.close()

    def _serve(self, connection: EngineConnection) -> None:
        """Take in what the process sends, until it is lost."""
        try:
            while True:
                for frame in connection.receive(self._silence_s):
                    self._take(frame)
        except SilentError as error:
            logger.error("%s", error)
            self._source.kill()
        except LostError:
            pass

    def _take(self, frame: ServerFrame) -> None:
        if frame.deltas:
            base, deltas = self._id_base, []
            with self._lock:
                for delta in frame.deltas:
                    request_id = delta.request_id - base
                    if request_id in self._live:
                        deltas.append(msgspec.structs.replace(delta, request_id=request_id))
                        if delta.finish_reason is not None:
                            self._live.discard(request_id)
            self._emit(deltas)
        if frame.info is not None:
            self._info = frame.info
        if frame.lora is not None:
            self._adapters[frame.lora.name] = frame.lora.path
        if frame.stats is not None:
            self._stats = frame.stats
        if frame.update is not None:
            with self._lock:
                question = self._questions.get(frame.update.update_id)
            if question is not None:
                question.result = frame.update
                question.answered.set()

    def _detach(self) -> None:
        """End what depends on the process, which is lost or was told to end."""
        with self._lock:
            connection, self._connection = self._connection, None
            channel, self._channel = self._channel, None
            live, self._live = self._live, set()
            questions = list(self._questions.values())
        assert connection is not None
        connection.close()
        if channel is not None:
            # A process that ends well says goodbye itself: this must not break off what it is about to say.
            channel.close(orderly=connection.orderly or self._closing.is_set())
        for question in questions:
            question.answered.set()
        if self._closing.is_set():
            self._emit([TokenDelta(request_id, [], "cancelled") for request_id in sorted(live)])
        else:
            self._emit([TokenDelta(i, [], "error", error=ENGINE_FAILED) for i in sorted(live)])

    def _return(self, served_s: float) -> bool:
        """Have the process back; False if the engine is closed instead."""
        reason, delay = self._source.lost(), self._policy.lost(served_s)
        while delay is not None:
            logger.error(
                "%s; it is %s again in %g s", reason, "looked for" if self._policy.endless else "started", delay
            )
            if self._closing.wait(delay):
                return False
            self._restarts += 1
            begun = time.monotonic()
            try:
                self._attach(self._source.open(self._closing, self._restarts))
            except ClosedError:
                return False
            except EngineLoadError as error:
                reason, delay = str(error), self._policy.failed()
                continue
            logger.warning("the engine's process is back after %.1f s", time.monotonic() - begun)
            return True
        logger.error("%s; it is not started any more: load the model again", reason)
        with self._lock:
            self._given_up = True
            waiting, self._waiting = self._waiting, []
            for accepted in waiting:
                self._keep_waiting(accepted)
        self._closing.wait()
        return False

    def _attach(self, opened: Opened) -> None:
        """Begin to use a process that is ready.

        Raises:
            EngineLoadError: it is lost already, or another engine than before.
        """
        connection = EngineConnection(opened.exchange)
        try:
            first = self._first(connection)
            self._restore_adapters(connection)
        except (LostError, EngineLoadError) as error:
            connection.close()
            opened.channel.close(orderly=False)
            self._source.kill()
            why = self._source.lost()
            raise EngineLoadError(str(error) or why) from None
        with self._lock:
            self._id_base = first.id_base
            self._connection, self._channel = connection, opened.channel
            waiting, self._waiting = self._waiting, []
            for accepted in waiting:
                try:
                    opened.channel.give(accepted)
                except OSError:
                    self._keep_waiting(accepted)

    def _first(self, connection: EngineConnection) -> ServerFrame:
        frames: list[ServerFrame] = []
        while not frames:
            frames = connection.receive(self._silence_s)
        first = frames[0]
        if first.info is None:
            raise EngineLoadError("the engine's process does not say what engine it has")
        if self._info is not None and _identity(first.info) != _identity(self._info):
            raise EngineLoadError("the engine's process has come back with another engine: load the model again")
        self._info = first.info
        return first

    def _restore_adapters(self, connection: EngineConnection) -> None:
        """Load the adapters again that were loaded at run time, and unload those that were unloaded."""
        for name, path in list(self._adapters.items()):
            if bool(path) == (name in self.info.lora_names):
                continue
            number = next(self._question_ids)
            connection.send(ClientFrame(loras=[LoraUpdate(number, name, path)]))
            result = None
            while result is None:
                for frame in connection.receive(self._silence_s):
                    self._take(frame)
                    if frame.update is not None and frame.update.update_id == number:
                        result = frame.update
            if result.error is not None:
                logger.error("the adapter %s is not loaded again: %s", name, result.error)
                self._adapters.pop(name, None)

    def _keep_waiting(self, accepted: socket.socket) -> None:
        """Keep a connection until the process is back, and tell its other end. With the lock."""
        self._waiting = [waiting for waiting in self._waiting if not _is_over(waiting)]
        if len(self._waiting) >= MOST_CONNECTIONS:
            self._warnings.write("%d connections wait for the engine's process: one more is closed", MOST_CONNECTIONS)
            accepted.close()
            return
        message = GIVEN_UP if self._given_up else RESTARTING
        try:
            accepted.send(pack(message), socket.MSG_DONTWAIT)
        except OSError:
            accepted.close()
            return
        self._waiting.append(accepted)


def _is_over(connection: socket.socket) -> bool:
    """True, and it is closed, if the other end has hung up."""
    if not has_hung_up(connection):
        return False
    connection.close()
    return True


def _identity(info: EngineInfo) -> EngineInfo:
    return msgspec.structs.replace(info, lora_names=())
