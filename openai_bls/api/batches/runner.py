"""Runner of batches: their requests are sent to this server's own endpoints, a few at a time, while others leave room.

Each instance has one. It takes a batch that nobody else works on to the next of three places, each for a bounded number
of batches (`turns`): its input is validated, its requests are sent, and, if it is cancelled or its time is over, it is
ended, from wherever it is. A batch whose API key is missing rests, and fails if the key stays away. In each place the
batch's lock is held; between them any instance may take it on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from openai_bls.api.batches.disk import in_thread
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.open_batch import OpenBatch
from openai_bls.api.batches.records import ENDED, BatchRecord
from openai_bls.api.batches.running import Running
from openai_bls.api.batches.turns import Rounds, Turns
from openai_bls.api.batches.validation import fail, fault, missing_input, validate
from openai_bls.api.batches.window import Window
from openai_bls.api.common.encoding import new_id
from openai_bls.api.http.handlers import Api

logger = logging.getLogger(__name__)

MAX_VALIDATING = 2
"""Input files that one instance validates at a time, each in a thread; of several keys each leaves one to others."""
MAX_ENDING = 2
"""Batches that one instance ends at a time, of those whose requests are not being sent, in the same way."""
MAX_OPEN = 64
"""Batches whose requests one instance sends by turns. Each has a lock, which is an open file, and lines in memory."""
ROUND = 64
"""Requests of an open batch after which another one that waits is opened in its place."""


class Pace(NamedTuple):
    """Intervals of a runner, in seconds."""

    scan_s: float = 2.0
    """Time between two looks for batches of other instances, those that have ended among them."""
    delete_s: float = 60.0
    """Time between two deletions of what has expired."""
    rest_s: float = 30.0
    """Time until a batch is tried again whose files could not be read or written."""
    tick_s: float = 0.2
    """Time between two looks whether there is room, and whether open batches are to end."""
    write_s: float = 1.0
    """Time between two writes of a batch's progress."""
    retry_s: tuple[float, float] = (0.5, 15.0)
    """Time until a batch sends more requests again after the server had no room for one: at first, and at most."""
    removed_s: float = 60.0
    """Time for which a batch rests whose API key is missing, before it fails."""


PACE = Pace()


class _Desk(NamedTuple):
    """A place where something is done for batches, and what."""

    turns: Turns
    work: Callable[[BatchRecord], Awaitable[None]]


class Runner:
    """Works on the batches of a folder until it is cancelled.

    Args:
        api: handlers of this instance.
        folder: folder with the batches.
    """

    def __init__(self, api: Api, folder: Folder) -> None:
        self._api = api
        self._service = api.service
        self._folder = folder
        self._pace = PACE
        self._max_bytes = self._service.settings.max_request_bytes

        def weight(key: str) -> float:
            return self._service.api_keys.limits(key).weight

        def all_but_one(most: int) -> Callable[[str], float]:
            return lambda _: most - 1 if self._service.api_keys.several else most

        self._ending = _Desk(Turns(MAX_ENDING, weight, all_but_one(MAX_ENDING), once=True), self._end)
        validating = Turns(MAX_VALIDATING, weight, all_but_one(MAX_VALIDATING), once=True)
        self._validating = _Desk(validating, self._validate)
        self._rounds = Rounds(MAX_OPEN, ROUND, weight)
        self._sending = _Desk(self._rounds, self._send_all)
        self._windows: dict[str, Window] = {}
        """Windows of the keys of which a request was refused."""

        def bound(key: str) -> float:
            return self._windows[key].most if key in self._windows else math.inf

        self._requests = Turns(self._service.settings.batch_concurrency, weight, bound)
        """Requests in flight."""
        self._running: dict[str, Running] = {}
        """Open batches."""
        self._tasks: dict[str, asyncio.Task[BatchRecord | None]] = {}
        """Tasks of the batches that are at a desk."""
        self._rests_until: dict[str, float] = {}
        self._opened = asyncio.Event()
        self._ended = False

    async def run(self) -> None:
        """Take on batches that nobody works on, and send requests of those that are open."""
        try:
            await asyncio.gather(self._scan(), self._look_after())
        finally:
            self._ended = True
            for window in self._windows.values():
                window.close()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _scan(self) -> None:
        """Look for batches: those of other instances, those that rested, and those whose time is over."""
        deletes_at = 0.0
        while True:
            took = 0.0
            try:
                if time.monotonic() >= deletes_at:
                    deletes_at = time.monotonic() + self._pace.delete_s
                    await asyncio.to_thread(self._folder.delete_expired)
                now = time.monotonic()
                self._rests_until = {batch_id: at for batch_id, at in self._rests_until.items() if at > now}
                unended = await asyncio.to_thread(self._folder.unended)
                took = time.monotonic() - now
                for at, batch in enumerate(unended, 1):
                    self.see(batch)
                    if at % 100 == 0:
                        await asyncio.sleep(0)
            except Exception:
                logger.exception("the folder of batches could not be read")
            # With very many batches a look takes long, and there are fewer of them.
            await asyncio.sleep(max(self._pace.scan_s, 20 * took))

    async def _look_after(self) -> None:
        """Look at open batches now and then: whether they are to end, and whether there is room for their requests."""
        while True:
            if self._running:
                try:
                    await self._tick()
                except Exception:
                    logger.exception("the open batches could not be looked at")
                await asyncio.sleep(self._pace.tick_s)
            else:
                self._opened.clear()
                await self._opened.wait()

    async def _tick(self) -> None:
        """Look after the open batches, and send requests if there is room."""
        cancelled = set(await asyncio.to_thread(self._folder.cancelled_of, list(self._running)))
        for batch_id, running in self._running.items():
            running.look(is_cancelled=batch_id in cancelled, is_keyless=self._missing_s(running.batch) is not None)
        self._make_room()
        self._send()

    def _make_room(self) -> None:
        """Have an open batch give its place to one that waits for it, if it is time, and none does already."""
        if not any(running.leaves for running in self._running.values()):
            leaver = self._running.get(self._rounds.leaver(self._is_idle) or "")
            if leaver is not None:
                leaver.leave()
                self._let(leaver)

    def _is_idle(self, batch_id: str) -> bool:
        running = self._running.get(batch_id)
        return running is not None and not running.tasks

    def see(self, batch: BatchRecord) -> None:
        """Take a batch to the desk where it is to be next, with what is known of it."""
        if self._ended or self._service.draining or batch.status in ENDED or batch.id in self._rests_until:
            return
        if batch.id in self._tasks:
            running = self._running.get(batch.id)
            if running is not None:
                is_keyless = self._missing_s(batch) is not None
                running.look(is_cancelled=batch.cancelling_at is not None, is_keyless=is_keyless)
            return
        desk = self._desk(batch)
        if desk is not None and batch.id not in desk.turns:
            for other in (self._ending, self._validating, self._sending):
                other.turns.remove(batch.id)
            desk.turns.add(batch.id, batch.owner)
            self._begin(desk)
            self._make_room()

    def cancel(self, batch: BatchRecord) -> None:
        """Take note that a batch is to be cancelled, which does not wait until its files can be written again."""
        self._rests_until.pop(batch.id, None)
        self.see(batch)

    def _desk(self, batch: BatchRecord) -> _Desk | None:
        """The desk where a batch is to be next; None while it rests because its key is missing."""
        if batch.cancelling_at is None and batch.finalizing_at is None:
            if self._missing_s(batch) is not None:
                return self._ending if self._is_removed(batch) else None
            if not batch.total:
                return self._validating
        return self._ending if batch.ends(time.time()) else self._sending

    def _missing_s(self, batch: BatchRecord) -> float | None:
        """Seconds for which a batch's key is missing; None if it is there."""
        return self._service.api_keys.missing_s(batch.owner)

    def _is_removed(self, batch: BatchRecord) -> bool:
        """True if a batch's key has been missing for so long that it is not expected to come back."""
        missing_s = self._missing_s(batch)
        return missing_s is not None and missing_s >= self._pace.removed_s

    def _begin(self, desk: _Desk) -> None:
        """Begin with as many batches at a desk as it has places for."""

        def ended(task: asyncio.Task[BatchRecord | None]) -> None:
            batch_id = task.get_name()
            del self._tasks[batch_id]
            desk.turns.remove(batch_id)
            if not task.cancelled() and (batch := task.result()) is not None:
                self.see(batch)
            if not self._ended:
                self._begin(desk)

        while (batch_id := desk.turns.take()) is not None:
            task = asyncio.get_running_loop().create_task(self._work(batch_id, desk), name=batch_id)
            self._tasks[batch_id] = task
            task.add_done_callback(ended)

    async def _work(self, batch_id: str, desk: _Desk) -> BatchRecord | None:
        """The record of a batch after work on it; None if others work on it, or nothing more is to be done now."""
        key = desk.turns.key_of(batch_id)
        try:
            with self._folder.locked(batch_id) as mine:
                if not mine:
                    return None
                # What it is now that the lock is held.
                batch = await in_thread(key, self._folder.batch, batch_id)
                if batch is None or batch.status in ENDED:
                    return None
                if self._desk(batch) is desk:
                    await self._done(batch, desk.work)
            return await in_thread(key, self._folder.batch, batch_id)
        except OSError as error:
            # A full disk, for example: what has been answered stays.
            logger.error("the batch %s is tried again in %g s: %s", batch_id, self._pace.rest_s, error)
            self._rests_until[batch_id] = time.monotonic() + self._pace.rest_s
            return None

    async def _done(self, batch: BatchRecord, work: Callable[[BatchRecord], Awaitable[None]]) -> None:
        """Work on a batch, which fails if that does.

        Raises:
            OSError: its files could not be read or written.
        """
        try:
            await work(batch)
        except OSError:
            raise
        except Exception:
            logger.exception("the batch %s failed", batch.id)
            fail(batch, fault("server_error", "The server had an error; see its log."))
            await in_thread(batch.owner, self._folder.write_batch, batch)

    async def _validate(self, batch: BatchRecord) -> None:
        await in_thread(batch.owner, validate, self._folder, batch, self._max_bytes)
        await in_thread(batch.owner, self._folder.write_batch, batch)

    async def _end(self, batch: BatchRecord) -> None:
        """End a batch none of whose requests is in progress."""
        opened = OpenBatch(self._folder, batch, self._max_bytes)
        if batch.finalizing_at is None:
            await opened.open()
            if batch.cancelling_at is None and self._is_removed(batch):
                logger.info("the batch %s ends: its API key '%s' was taken out", batch.id, batch.owner)
                batch.errors = [fault("invalid_api_key", "The API key of this batch was taken out.")]
            elif batch.cancelling_at is None and not opened.has_input:
                fail(batch, missing_input(batch))
                await opened.write()
                return
        await opened.finish()

    async def _send_all(self, batch: BatchRecord) -> None:
        """Send the requests of a batch by turns, until all have results, it is to end, or it makes room for another."""
        opened = OpenBatch(self._folder, batch, self._max_bytes)
        await opened.open()
        if not opened.has_input:
            fail(batch, missing_input(batch))
            await opened.write()
            return
        running = self._running[batch.id] = Running(opened, self._pace.write_s, self._pace.retry_s, self._resume)
        self._requests.add(batch.id, batch.owner)
        try:
            self._resume(running)
            self._opened.set()
            await running.over(lambda: self._service.draining)
        finally:
            await running.cancel()
            del self._running[batch.id]
            self._requests.remove(batch.id)
            self._send()
        if running.is_keyless and not running.is_over:
            # Its requests in flight have no results, and are sent again if the key comes back.
            await opened.write()
        elif opened.left and not running.is_over and not running.is_exhausted:
            await opened.close()
        else:
            await opened.finish()

    # Requests

    def _send(self) -> None:
        """Begin as many requests as there is room for, each of the batch whose turn it is."""
        while self._has_room() and (batch_id := self._requests.take()) is not None:
            self._rounds.count(batch_id)
            running = self._running[batch_id]
            running.begin(self._answer(running), self._answered)
            self._let(running)

    def _let(self, running: Running) -> None:
        """Let a batch have turns, or none, as it is now."""
        if running.may_begin:
            self._requests.add(running.batch.id, running.batch.owner)
        else:
            self._requests.pause(running.batch.id)

    def _answered(self, running: Running) -> None:
        """Take note that a request has ended."""
        self._requests.give_back(running.batch.id)
        self._let(running)
        if self._rounds.is_due(running.batch.id):
            self._make_room()
        self._send()

    def _has_room(self) -> bool:
        """True if nothing waits for an engine, or in one, so that another request of a batch delays nobody."""
        service = self._service
        if service.draining or self._ended:
            return False
        if any(model.engine.stats and model.engine.stats.waiting for model in service.models):
            return False
        return not any(service.admission(model).waiting for model in service.models)

    async def _answer(self, running: Running) -> None:
        """Send a request of a batch and write its result, or put it back if the server has no room for it."""
        opened, batch = running.opened, running.batch
        found = await opened.next()
        if found is None:
            running.exhausted()
            return
        line, place = found
        request_id = new_id("req_")
        answer = await self._api.dispatch(line.url, bytes(line.body), request_id, batch.owner)
        # Without the header there is no time at which it would succeed.
        if answer.status_code in (429, 503) and "retry-after" in answer.headers:
            opened.put_back(place)
            # A limit of the key is one of all its batches; a model that does not answer may be of this batch alone.
            is_of_key = answer.status_code == 429
            running.put_back(shrink=not is_of_key)
            if is_of_key:
                self._window(batch.owner).refused(self._requests.used_by(batch.owner) - 1)
            return
        await opened.add(line, answer.status_code, request_id, bytes(answer.body))

    def _window(self, key: str) -> Window:
        """The window of a key."""

        def grown() -> None:
            if math.isinf(window.most):
                del self._windows[key]
            self._send()

        if key not in self._windows:
            window = self._windows[key] = Window(self._pace.retry_s, grown)
        return self._windows[key]

    def _resume(self, running: Running) -> None:
        """Let a batch send requests, at first or when it may have more in progress than before."""
        self._let(running)
        self._send()
