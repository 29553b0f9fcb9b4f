"""Runner of batches: their requests are sent to this server's own endpoints, a few at a time, while others leave room.

Each instance has one. What a batch has is on disk: a request's result is one line, written when it has come, so that
a server that ends in between goes on where it was, and no request has two results.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import IO, Any, Literal, TypeVar

from openai_bls.api.batches import lines
from openai_bls.api.batches.folder import ENDED, BatchRecord, Folder
from openai_bls.api.batches.lines import Line, LineError
from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.http.handlers import Api

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SCAN_INTERVAL_S = 2.0
"""Seconds between two looks for batches that nobody works on."""
_DELETE_INTERVAL_S = 60.0
"""Seconds between two deletions of what has expired."""
_REST_S = 30.0
"""Seconds until a batch is tried again whose files could not be read or written."""
_MAX_RUNNING = 16
"""Batches that one instance works on at a time: each has files open and requests of its own to retry."""
_MAX_RUNNING_PER_KEY = 4
_TICK_S = 0.2
"""Seconds between two looks whether there is room, and whether the batch is to end."""
_WRITE_INTERVAL_S = 1.0
"""Seconds between two writes of a batch's progress."""
_RETRY_S = (0.5, 15.0)
"""Seconds until a request is sent again for which the server had no room: at first, and at most."""
_MAX_ERRORS = 100
"""Faults of an input file that are listed."""
_READ_LINES = 32


class Runner:
    """Works on the batches of a folder until it is cancelled.

    Args:
        api: handlers of this instance.
        folder: folder with the batches.
    """

    def __init__(self, api: Api, folder: Folder) -> None:
        self._api = api
        self._folder = folder
        self._settings = api.service.settings
        self._kick = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._owners: Counter[str] = Counter()
        """Running batches of each key."""
        self._rests_until: dict[str, float] = {}
        self._deletes_at = 0.0
        self._in_flight = 0

    def kick(self) -> None:
        """Look for batches now."""
        self._kick.set()

    async def run(self) -> None:
        """Look for batches that nobody works on, and work on them."""
        try:
            while True:
                try:
                    await self._scan()
                except Exception:
                    logger.exception("the folder of batches could not be read")
                # Not wait_for: up to Python 3.11 it forgets that it was cancelled when the event comes just then.
                timer = asyncio.get_running_loop().call_later(_SCAN_INTERVAL_S, self._kick.set)
                await self._kick.wait()
                timer.cancel()
                self._kick.clear()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _scan(self) -> None:
        now = time.monotonic()
        if now >= self._deletes_at:
            self._deletes_at = now + _DELETE_INTERVAL_S
            await asyncio.to_thread(self._folder.delete_expired)
        unended = await asyncio.to_thread(self._folder.unended)
        self._rests_until = {batch.id: at for batch in unended if (at := self._rests_until.get(batch.id, 0.0)) > now}
        for batch in unended:
            if self._may_begin(batch):
                with contextlib.ExitStack() as lock:
                    if lock.enter_context(self._folder.locked(batch.id)):
                        self._begin(batch, lock.pop_all())

    def _may_begin(self, batch: BatchRecord) -> bool:
        return (
            batch.id not in self._running
            and batch.id not in self._rests_until
            and len(self._running) < _MAX_RUNNING
            and self._owners[batch.owner] < _MAX_RUNNING_PER_KEY
            and not self._api.service.draining
        )

    def _begin(self, batch: BatchRecord, lock: contextlib.ExitStack) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            del self._running[batch.id]
            self._owners[batch.owner] -= 1
            lock.close()

        self._owners[batch.owner] += 1
        task = self._running[batch.id] = asyncio.get_running_loop().create_task(self._work(batch.id))
        task.add_done_callback(ended)

    async def _work(self, batch_id: str) -> None:
        """Work on a batch whose lock is held."""
        # What it is now that the lock is held.
        batch = await asyncio.to_thread(self._folder.batch, batch_id)
        if batch is None or batch.status in ENDED:
            return
        try:
            await _Work(self, batch).run()
        except OSError as error:
            # A full disk, for example: what has been answered stays.
            logger.error("the batch %s is tried again in %g s: %s", batch_id, _REST_S, error)
            self._rests_until[batch_id] = time.monotonic() + _REST_S
        except Exception:
            logger.exception("the batch %s failed", batch_id)
            batch.errors = [_fault("server_error", "The server had an error; see its log.")]
            batch.status, batch.failed_at = "failed", _now()
            await _in_thread(self._folder.write_batch, batch)

    @property
    def api(self) -> Api:
        """Of this instance."""
        return self._api

    @property
    def folder(self) -> Folder:
        """Has the batches."""
        return self._folder

    def has_room(self) -> bool:
        """True if nothing waits for an engine, or in one, so that another request of a batch delays nobody."""
        if self._in_flight >= self._settings.batch_concurrency:
            return False
        service = self._api.service
        if any(model.engine.stats and model.engine.stats.waiting for model in service.models):
            return False
        return not any(service.admission(model).waiting for model in service.models)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that answers one request, counted until it ends."""

        def ended(task: asyncio.Task[None]) -> None:
            self._in_flight -= 1

        self._in_flight += 1
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(ended)
        return task

    async def send(self, batch: BatchRecord, line: Line) -> tuple[int, str, bytes] | None:
        """The answer to a request of a batch: status, request id, JSON text. None if the server is going down."""
        wait, most = _RETRY_S
        body = encode(line.body)
        while not self._api.service.draining:
            request_id = new_id("req_")
            answer = await self._api.dispatch(line.url, body, request_id, batch.owner)
            # Without the header there is no time at which it would succeed.
            again = answer.status_code in (429, 503) and "retry-after" in answer.headers
            if not again or self._ending(batch):
                return answer.status_code, request_id, bytes(answer.body)
            await asyncio.sleep(wait)
            wait = min(2 * wait, most)
        return None

    def _ending(self, batch: BatchRecord) -> bool:
        return time.time() >= batch.expires_at or self._folder.cancelling_at(batch.id) is not None


class _Work:
    """Work on one batch, whose lock is held."""

    def __init__(self, runner: Runner, batch: BatchRecord) -> None:
        self._runner = runner
        self._folder = runner.folder
        self._batch = batch
        self._max_bytes = runner.api.service.settings.max_request_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: list[Line] = []
        """Requests without a result."""
        self._written_at = 0.0

    async def run(self) -> None:
        batch = self._batch
        if batch.finalizing_at is None:
            if not await asyncio.to_thread(self._validate):
                batch.status, batch.failed_at = "failed", _now()
                await self._write()
                return
            if not await self._send_all():
                return
        await _in_thread(self._finalize)

    def _validate(self) -> bool:
        """Read the whole input, which has not changed if it was read before; False if it has faults."""
        batch = self._batch
        source = self._folder.data(batch.input_file_id)
        if not source.exists():
            batch.errors = [_fault("invalid_input_file", f"The file {batch.input_file_id} is no longer there.")]
            return False
        seen: set[str] = set()
        errors: list[dict[str, Any]] = []
        models: set[str | None] = set()
        for number, text in lines.texts(source, self._max_bytes):
            try:
                line = lines.parse(text, batch.endpoint)
                if line.custom_id in seen:
                    raise LineError("duplicate_custom_id", "Another line has the same 'custom_id'.", "custom_id")
                seen.add(line.custom_id)
                model = line.body.get("model")
                models.add(model if isinstance(model, str) else None)
            except LineError as error:
                errors.append(_fault(error.code, error.message, error.param, number))
            if len(seen) > lines.MAX_LINES:
                errors.append(_fault("too_many_requests", f"A batch has {lines.MAX_LINES} requests at most."))
                break
            if len(errors) >= _MAX_ERRORS:
                break
        if not seen and not errors:
            errors.append(_fault("empty_file", "The file has no requests."))
        batch.errors, batch.total = errors, len(seen)
        batch.model = models.pop() if len(models) == 1 else None
        return not errors

    async def _send_all(self) -> bool:
        """Send what has no result yet; False if the server goes down first."""
        batch, folder = self._batch, self._folder
        batch.done, batch.failed = lines.Tally(), lines.Tally()
        output, errors = folder.results(batch.id, "output"), folder.results(batch.id, "errors")
        done = await asyncio.to_thread(lines.resume, output, batch.done)
        done |= await asyncio.to_thread(lines.resume, errors, batch.failed)
        if batch.status == "validating":
            batch.status, batch.in_progress_at = "in_progress", _now()
        await self._write()
        left = iter(self._lines(done))
        with output.open("ab", buffering=0) as good, errors.open("ab", buffering=0) as bad:
            try:
                while chunk := await asyncio.to_thread(lambda: list(itertools.islice(left, _READ_LINES))):
                    for line in chunk:
                        while not self._runner.has_room() and not self._ends:
                            await self._pause()
                        if self._ends:
                            break
                        self._tasks.add(self._runner.begin(self._answer(line, good, bad)))
                    if self._ends:
                        break
                while self._tasks:
                    # One that is cancelled does not wait for its requests.
                    if self._ends and not self._runner.api.service.draining:
                        break
                    await self._pause()
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._runner.api.service.draining and batch.done.count + batch.failed.count < batch.total:
                await self._write()
                return False
            if self._folder.cancelling_at(batch.id) is None and time.time() >= batch.expires_at:
                await _in_thread(self._expire, bad)
        return True

    @property
    def _ends(self) -> bool:
        """True if no further request is to be sent."""
        batch = self._batch
        cancelled = self._folder.cancelling_at(batch.id) is not None
        return cancelled or time.time() >= batch.expires_at or self._runner.api.service.draining

    def _lines(self, done: set[str]) -> Iterator[Line]:
        for _, text in lines.texts(self._folder.data(self._batch.input_file_id), self._max_bytes):
            line = lines.parse(text, self._batch.endpoint)
            if line.custom_id not in done:
                yield line

    async def _answer(self, line: Line, good: IO[bytes], bad: IO[bytes]) -> None:
        answer = await self._runner.send(self._batch, line)
        if answer is not None:
            status, request_id, body = answer
            text = lines.result(line, status, request_id, body)
            # At once, with no await: whoever cancels this finds a result or none.
            _append(good if status == 200 else bad, text)
            (self._batch.done if status == 200 else self._batch.failed).add(text)

    def _expire(self, bad: IO[bytes]) -> None:
        """Write the results of requests for which there was no time."""
        batch = self._batch
        done = lines.resume(self._folder.results(batch.id, "output"), lines.Tally())
        done |= lines.resume(self._folder.results(batch.id, "errors"), lines.Tally())
        for line in self._lines(done):
            text = lines.not_run(line, "batch_expired", "The batch expired before this request was answered.")
            _append(bad, text)
            batch.failed.add(text)
            batch.ran_out = True

    async def _pause(self) -> None:
        """Wait until a request has ended, or for a while; write the progress now and then."""
        if self._tasks:
            ended, self._tasks = await asyncio.wait(self._tasks, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        else:
            await asyncio.sleep(_TICK_S)
        if time.monotonic() - self._written_at > _WRITE_INTERVAL_S:
            await self._write()

    def _finalize(self) -> None:
        """Make files of the results. Done again after a crash, it makes the same."""
        batch, folder = self._batch, self._folder
        cancelling_at = folder.cancelling_at(batch.id)
        if batch.finalizing_at is None:
            batch.cancelling_at = cancelling_at
            if cancelling_at is None:
                batch.status = "finalizing"
            batch.finalizing_at = _now()
            batch.output_file_id = new_id("file-") if batch.done.count else None
            batch.error_file_id = new_id("file-") if batch.failed.count else None
            folder.write_batch(batch)
        kinds: tuple[tuple[Literal["output", "errors"], str | None], ...] = (
            ("output", batch.output_file_id),
            ("errors", batch.error_file_id),
        )
        for kind, file_id in kinds:
            path = folder.results(batch.id, kind)
            if file_id is None:
                path.unlink(missing_ok=True)
            else:
                name = f"{batch.id}_{kind}.jsonl"
                folder.adopt_file(path, file_id, name, "batch_output", batch.output_expires_s, batch.owner)
        finished = batch.done.count + batch.failed.count >= batch.total
        if batch.cancelling_at is not None and not finished:
            batch.status, batch.cancelled_at = "cancelled", _now()
        elif batch.ran_out:
            batch.status, batch.expired_at = "expired", _now()
        else:
            batch.status, batch.completed_at = "completed", _now()
        folder.write_batch(batch)

    async def _write(self) -> None:
        self._written_at = time.monotonic()
        await _in_thread(self._folder.write_batch, self._batch)


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Result of `work` in a thread. Cancelled, this ends with the thread, so that a lock is held as long as that."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])


def _append(file: IO[bytes], text: bytes) -> None:
    """Write `text` to an unbuffered file: all of it, or nothing.

    Raises:
        OSError: it does not fit.
    """
    size = os.fstat(file.fileno()).st_size
    if file.write(text) != len(text):
        os.ftruncate(file.fileno(), size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _now() -> int:
    return int(time.time())


def _fault(code: str, message: str, param: str | None = None, line: int | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param, "line": line}
