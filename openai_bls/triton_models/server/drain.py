"""Drain guard: a stopping tritonserver waits until the streams of /v1 have ended.

Triton does not know these streams. On SIGTERM its HTTP front end first waits, up to --exit-timeout-secs, for its
connections to close, while the models go on working; only then are further inferences refused, the exchange with the
engine included (measured on 2.51.0). So while any request is in progress, one idle connection to that front end is held
open, and a second, short one asks once a second whether the server is still ready: if not, no new requests are taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_PROBE = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class DrainGuard:
    """Holds the server while there is work; belongs to the event loop's thread.

    Args:
        address: host and port of Triton's HTTP front end; None turns the guard off, and then requests in progress at
            shutdown are answered with an error instead.
        on_drain: called once, when the server is found to be shutting down.
        linger_s: seconds between two looks at the number of requests in progress.
        probe_interval_s: seconds between two readiness probes.
    """

    def __init__(
        self,
        address: tuple[str, int] | None,
        on_drain: Callable[[], None],
        linger_s: float = 0.5,
        probe_interval_s: float = 1.0,
    ) -> None:
        self._address = address
        self._on_drain = on_drain
        self._linger_s = linger_s
        self._probe_interval_s = probe_interval_s
        self._busy = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._in_progress = 0
        self._drained = False
        self._stopped = False

    def start(self) -> None:
        """Begin to watch."""
        if self._address is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def set_in_progress(self, count: int) -> None:
        """Set the number of requests in progress."""
        self._in_progress = count
        if count:
            self._busy.set()

    async def stop(self) -> None:
        """Let go of the server."""
        # Before Python 3.12 `asyncio.wait_for` loses a cancellation that comes just when the answer does.
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        assert self._address is not None
        host, port = self._address
        warned = False
        while not self._stopped:
            await self._busy.wait()
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError:
                # Triton opens it only when every model is loaded; it may also be at another address.
                if not warned:
                    logger.warning("Triton's HTTP port %d cannot be reached: no drain at shutdown until it can", port)
                    warned = True
                await asyncio.sleep(self._probe_interval_s)
                if not self._in_progress:
                    self._busy.clear()
                continue
            warned = False
            try:
                await self._hold()
            finally:
                writer.close()

    async def _hold(self) -> None:
        """While requests are in progress, and a little longer, so that the next one finds the connection."""
        next_probe = asyncio.get_running_loop().time() + self._probe_interval_s
        while not self._stopped:
            await asyncio.sleep(self._linger_s)
            if not self._in_progress:
                self._busy.clear()
                return
            if asyncio.get_running_loop().time() >= next_probe:
                if not self._drained and not await self._ready():
                    self._drained = True
                    self._on_drain()
                next_probe = asyncio.get_running_loop().time() + self._probe_interval_s

    async def _ready(self) -> bool:
        assert self._address is not None
        try:
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                writer.write(_PROBE)
                # An overloaded server may take long; one that is shutting down closes at once.
                answer = await asyncio.wait_for(reader.read(16), timeout=30)
            finally:
                writer.close()
        except ConnectionError:
            return False
        except (TimeoutError, OSError):
            # No answer yet, or no socket to ask with (too many open files): that says nothing about the server.
            return True
        return answer.startswith(b"HTTP/1.1 200") or answer.startswith(b"HTTP/1.1 4")
