"""Limit on the CPU time of Python code on the calling thread: an exception ends what takes more.

CPU time, since a thread that other work starves is not to blame. What runs in C, one long sort for example, ends when
it is back in Python.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

_TICK_S = 0.02
"""Seconds between two looks at the clocks of what runs."""
_AGAIN_S = 0.05
"""CPU time in seconds, at least, after which the exception is raised again on a thread that goes on."""
_IDLE_TICKS = 50
"""Looks without anything to look at after which the watching thread sleeps: requests that follow each other closely
then need not wake it."""


class CpuLimitError(Exception):
    """The code has taken more CPU time than it may."""


class _Expired(BaseException):
    """Raised on the thread of the code, which must not catch it as it catches its own errors."""


class _Run:
    __slots__ = ("clock", "expired", "seconds", "thread", "until")

    def __init__(self, seconds: float) -> None:
        self.thread = threading.get_ident()
        self.clock = time.pthread_getcpuclockid(self.thread)
        self.seconds = seconds
        self.until = time.clock_gettime(self.clock) + seconds
        self.expired = False

    def expire(self) -> None:
        """Raise on the thread, and again when it has taken more: where the interpreter may not raise, in `__del__` and
        in a callback of the garbage collector, it drops what is raised and the code goes on."""
        self.expired = True
        self.until += max(self.seconds, _AGAIN_S)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(_Expired))


class CpuLimit:
    """Runs code with a limit, on any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: set[_Run] = set()
        self._awake = False
        self._wake = threading.Event()
        self._watch: threading.Thread | None = None

    def run(self, work: Callable[[], _Result], seconds: float) -> _Result:
        """The result of `work`.

        Args:
            work: Python code that leaves nothing half done when an exception ends it anywhere.
            seconds: most CPU time of this thread.

        Raises:
            CpuLimitError: it takes longer.
        """
        run = _Run(seconds)
        failure: Exception | None = None
        try:
            try:
                self._begin(run)
                result = work()
            except Exception as error:  # the code's own
                failure = error
            finally:
                with self._lock:
                    self._runs.discard(run)
            if run.expired:
                _take_exception()
        except _Expired:
            raise CpuLimitError from None
        if run.expired:
            failure = CpuLimitError()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        return result

    def _begin(self, run: _Run) -> None:
        with self._lock:
            self._runs.add(run)
            if self._awake:
                return
            self._awake = True
            if self._watch is None:
                self._watch = threading.Thread(target=self._look, name="cpu-limit", daemon=True)
                self._watch.start()
        self._wake.set()

    def _look(self) -> None:
        while True:
            self._wake.wait()
            idle = 0
            while idle < _IDLE_TICKS:
                time.sleep(_TICK_S)
                with self._lock:
                    idle = 0 if self._runs else idle + 1
                    for run in [one for one in self._runs if time.clock_gettime(one.clock) > one.until]:
                        run.expire()
            with self._lock:
                self._awake = bool(self._runs)
                if not self._awake:
                    self._wake.clear()


def _take_exception() -> None:
    """Let come what has been raised on this thread: that is at the end of a round at the latest.

    Taking it back instead (`PyThreadState_SetAsyncExc` with NULL) leaves the interpreter looking for it for ever.
    """
    for _ in range(8):
        pass
