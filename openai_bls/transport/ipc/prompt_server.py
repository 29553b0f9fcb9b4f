"""Prompt exchange, the end in `preprocessing`: its connections, and threads for short and for long prompts."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import OverloadedError
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.core.log_limit import LimitedWarnings
from openai_bls.core.machine import memory
from openai_bls.transport.ipc.frames import GOODBYE, PING, FrameError, Frames, FrameTooLargeError, pack
from openai_bls.transport.ipc.listener import GREETING_S, MOST_CONNECTIONS, Listener, greeted
from openai_bls.transport.ipc.prompts import LONG_BYTES, PromptAnswer, PromptCall, SlowPromptError

logger = logging.getLogger(__name__)

Prepare = Callable[[PromptRequest], PromptResult]

# A request that comes alone is prepared where it is read, which saves a thread's wake-up, if it has no more bytes than
# this (some 1 ms).
_SHORT_BYTES = 8 * 1024
# One of so many bytes (some 0.2 ms) is prepared there whatever comes with it: threads would spend more on taking turns
# at Python than they save.
_TINY_BYTES = 1024
# Nice value added to that of the thread for the largest: the CPU is the others' first.
_LONG_NICE = 5
# Seconds that a client which is slow to read has for the answers under way when the model is unloaded.
_GRACE_S = 1.0

_SLOW_THREADS = 2
"""Slow prompts that are prepared at a time."""
_MOST_SLOW = 8
"""Slow prompts of one key that wait for a thread; further ones are refused."""
_SLOW_LATELY_S = 60.0
"""Seconds after a slow prompt in which the threads that read prepare none."""

_TOO_MANY_TOKENS = PromptResult(
    error="The prompt has more tokens than can be passed on.", code="context_length_exceeded"
)

# Prepared for a client that only wants to know whether that works.
_PROBE = PromptRequest(prompts=["ready"])


class PromptExchangeServer:
    """Prepares prompts for every `openai_bls` instance.

    Args:
        address: address of the listening socket, which `sockets.address` gives.
        prepare: prepares a prompt; any thread calls it, several at the same time.
        threads: number of threads that prepare prompts, without those that read them.
        prepare_slowly: prepares what `prepare` raises `SlowPromptError` for.
    """

    def __init__(self, address: str, prepare: Prepare, threads: int, prepare_slowly: Prepare | None = None) -> None:
        self._prepare = prepare
        self._prepare_slowly = prepare_slowly or prepare
        self._lanes = _Lanes(threads)
        self._listener = Listener("preprocessing model", address, self._connect)
        self._warnings = LimitedWarnings(logger)
        self._lock = threading.Lock()
        self._connections: list[_PromptConnection] = []

    def start(self) -> None:
        """Begin to serve."""
        self._listener.start()

    def close(self) -> None:
        """Hang up."""
        self._listener.close()
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()
        self._lanes.close()

    def _connect(self, accepted: socket.socket) -> None:
        with self._lock:
            # Those whose clients have gone are forgotten here.
            self._connections = [c for c in self._connections if c.alive]
            if len(self._connections) >= MOST_CONNECTIONS:
                self._warnings.write("there are %d connections to preprocessing: one more is closed", MOST_CONNECTIONS)
                accepted.close()
                return
            connection = _PromptConnection(accepted, self._prepare, self._prepare_slowly, self._lanes)
            self._connections.append(connection)
            connection.start()


class _Lanes:
    """Threads for short, for long and for slow requests: no number of the others holds a short one up."""

    def __init__(self, threads: int) -> None:
        self._short = FairExecutor(threads, "prompt-short")
        self._middle = FairExecutor(threads, "prompt-middle")
        self._long = FairExecutor(1, "prompt-long", initializer=_yield_cpu)
        self._slow = FairExecutor(_SLOW_THREADS, "prompt-slow", _MOST_SLOW, _yield_cpu)
        self._slow_at = float("-inf")

    @property
    def slow_lately(self) -> bool:
        """A request was slow within the last minute."""
        return time.monotonic() - self._slow_at < _SLOW_LATELY_S

    def schedule_slow(self, key: str, work: Callable[[], None]) -> Future[None]:
        """Have a slow request prepared.

        Raises:
            OverloadedError: too many of the key wait.
            RuntimeError: once closed.
        """
        self._slow_at = time.monotonic()
        return self._slow.submit(key, work)

    def schedule(self, key: str, size: int, work: Callable[[], None]) -> Future[None]:
        """Have a request of `size` bytes prepared; raises RuntimeError once closed."""
        if size <= _SHORT_BYTES:
            return self._short.submit(key, work)
        if size <= LONG_BYTES:
            return self._middle.submit(key, work)
        return self._long.submit(key, functools.partial(_then_trim, work))

    def close(self) -> None:
        """Drop what waits, wait for what runs."""
        for pool in (self._short, self._middle, self._long, self._slow):
            pool.close(wait=True)


def _yield_cpu() -> None:
    # Linux has a nice value for each thread.
    with contextlib.suppress(OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _LONG_NICE)


def _then_trim(work: Callable[[], None]) -> None:
    work()
    memory.trim()


class _PromptConnection:
    """One `openai_bls` instance."""

    def __init__(self, connection: socket.socket, prepare: Prepare, prepare_slowly: Prepare, lanes: _Lanes) -> None:
        self._socket = connection
        self._prepare = prepare
        self._prepare_slowly = prepare_slowly
        self._lanes = lanes
        self._waiting: dict[int, Future[None]] = {}
        """Prompts in progress by call_id; the reading thread adds them, others take them out."""
        self._slow: dict[int, Future[None]] = {}
        """Slow ones by call_id."""
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="prompt-read", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the client is connected."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Hang up."""
        # A client that reads nothing must not hold up the unload.
        if self._sending.acquire(timeout=_GRACE_S):
            try:
                with contextlib.suppress(OSError):
                    self._socket.send(pack(GOODBYE), socket.MSG_DONTWAIT)
            finally:
                self._sending.release()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        decoder = msgspec.msgpack.Decoder(PromptCall)
        try:
            self._answer_with(PromptAnswer(0))
            if not greeted(self._socket):
                raise FrameError(f"it has not said a word within {GREETING_S:g} s")
            frames = Frames()
            while data := self._socket.recv(65536):
                messages = frames.feed(data)
                calls = [decoder.decode(message) for message in messages if message != PING]
                if len(calls) < len(messages):
                    self._answer_ping()
                self._take(calls)
                # Not held until the next ones come: each may be large.
                del messages, calls
        except (OSError, RuntimeError, msgspec.DecodeError) as error:
            logger.info("an openai_bls instance hung up: %s", error)
        for waiting in [*self._waiting.values(), *self._slow.values()]:
            waiting.cancel()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._sending:
            self._socket.close()

    def _answer_ping(self) -> None:
        try:
            self._prepare(_PROBE)
        except Exception:
            logger.exception("prompts cannot be prepared")
            return
        self._send(PING)

    def _take(self, calls: list[PromptCall]) -> None:
        # Requests that arrive together are prepared in parallel.
        here = _SHORT_BYTES if len(calls) == 1 else _TINY_BYTES
        if self._lanes.slow_lately:
            here = -1
        for call_id, request, key in ((call.call_id, call.request, call.key) for call in calls):
            if request is None:
                for found in (self._waiting, self._slow):
                    waiting = found.pop(call_id, None)
                    if waiting is not None:
                        # One that runs goes on.
                        waiting.cancel()
            elif len(request) <= here:
                self._answer(call_id, request, key)
            else:
                work = functools.partial(self._answer, call_id, request, key)
                future = self._lanes.schedule(key, len(request), work)
                self._waiting[call_id] = future
                future.add_done_callback(functools.partial(self._forget, call_id))

    def _forget(self, call_id: int, future: Future[None]) -> None:
        self._waiting.pop(call_id, None)

    def _answer(self, call_id: int, request: bytes, key: str) -> None:
        self._answer_by(self._prepare, call_id, request, key)

    def _answer_slowly(self, call_id: int, request: bytes, key: str) -> None:
        try:
            self._answer_by(self._prepare_slowly, call_id, request, key)
        finally:
            self._slow.pop(call_id, None)

    def _answer_by(self, prepare: Prepare, call_id: int, request: bytes, key: str) -> None:
        try:
            answer = PromptAnswer(call_id, prepare(msgspec.msgpack.decode(request, type=PromptRequest)))
        except SlowPromptError:
            work = functools.partial(self._answer_slowly, call_id, request, key)
            try:
                future = self._lanes.schedule_slow(key, work)
            except OverloadedError as error:
                answer = PromptAnswer(call_id, overloaded=error.message)
            else:
                self._slow[call_id] = future
                if future.done():
                    self._slow.pop(call_id, None)
                return
        except Exception:
            logger.exception("a prompt could not be prepared")
            answer = PromptAnswer(call_id, failed=True)
        # Unless the client has gone meanwhile.
        with contextlib.suppress(OSError):
            self._answer_with(answer)

    def _answer_with(self, answer: PromptAnswer) -> None:
        try:
            self._send(msgspec.msgpack.encode(answer))
        except FrameTooLargeError:
            self._send(msgspec.msgpack.encode(PromptAnswer(answer.call_id, _TOO_MANY_TOKENS)))

    def _send(self, message: bytes) -> None:
        with self._sending:
            self._socket.sendall(pack(message))
