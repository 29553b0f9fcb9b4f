"""An open batch: one whose lock is held. Its next lines, its results on disk, and the files that are made of these.

A result is one line, written when it has come, so that a server that ends in between goes on where it was, and no
request has two results. No file is open between two calls, and of the input no more is held than a few short lines.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import Literal, TypeVar

from openai_bls.api.batches import lines
from openai_bls.api.batches.disk import in_thread
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.lines import Line, Place, Tally
from openai_bls.api.batches.records import BatchRecord, Closed
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.large_bodies import is_large

T = TypeVar("T")

_READ_BYTES = 64 * 1024
"""Bytes of lines that are read ahead; a longer line is read when its turn comes."""


class OpenBatch:
    """Work on the files of one batch, whose lock the caller holds.

    Args:
        folder: folder that has the files.
        batch: record of the batch, as it is since the lock is held.
        max_bytes: most bytes of a request's body.
    """

    def __init__(self, folder: Folder, batch: BatchRecord, max_bytes: int) -> None:
        self.batch = batch
        self._folder = folder
        self._max_bytes = max_bytes
        self._source = folder.data(batch.input_file_id)
        self._output = folder.results(batch.id, "output")
        self._errors = folder.results(batch.id, "errors")
        self._answered: set[str] = set()
        """`custom_id`s of lines from `_start` on that have results already."""
        self._start = 0
        """Offset of the first line that has not been read, in bytes."""
        self._read: deque[tuple[Line, Place]] = deque()
        """Lines that have been read and not been returned by `next`."""
        self._again: deque[int] = deque()
        """Offsets in bytes of lines that were put back."""
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()
        self._unwritten_results = 0
        self._written_at = 0.0

    async def open(self) -> None:
        """Find out which requests have results. For one that was closed that is known without reading them."""
        closed = self.batch.closed_at
        if closed is not None and closed == await in_thread(self.batch.owner, self._closed, closed.start):
            self._start = closed.start
        else:
            self._answered = await in_thread(self.batch.owner, self._count_results)

    @property
    def left(self) -> int:
        """Number of requests without a result."""
        return self.batch.total - self.batch.done.count - self.batch.failed.count

    @property
    def has_input(self) -> bool:
        """True if the input file is there, which only another hand than the server's can have deleted."""
        return self._source.exists()

    # Requests

    async def next(self) -> tuple[Line, Place] | None:
        """The next request without a result, and its place; None after the last."""
        async with self._reading:
            return self._read.popleft() if self._read else await in_thread(self.batch.owner, self._next)

    def _next(self) -> tuple[Line, Place] | None:
        """See `next`. A line that was put back comes after all others: it may be for a model that is not loaded."""
        while not self._read and (found := lines.read(self._source, self._start, self._max_bytes, _READ_BYTES)):
            self._start = found[-1].end
            for place in found:
                line = lines.parse(place.text)
                if line.custom_id not in self._answered:
                    self._read.append((line, place))
                self._answered.discard(line.custom_id)
        if not self._read and self._again:
            (place,) = lines.read(self._source, self._again.popleft(), self._max_bytes)
            self._read.append((lines.parse(place.text), place))
        return self._read.popleft() if self._read else None

    def put_back(self, place: Place) -> None:
        """Have a request once more by `next`."""
        self._again.append(place.start)

    async def add(self, line: Line, status: int, request_id: str, body: bytes) -> None:
        """Write and count the result of a request: all of it or, if this is cancelled, perhaps nothing."""

        def add() -> None:
            text = lines.result(line, status, request_id, body)
            lines.append(self._output if status == 200 else self._errors, text)
            (self.batch.done if status == 200 else self.batch.failed).add(text)

        async with self._writing:
            if is_large(body):
                await in_thread(self.batch.owner, add)
            else:
                add()
            self._unwritten_results += 1

    # The record

    async def write(self) -> None:
        """Write the record."""
        self._unwritten_results, self._written_at = 0, time.monotonic()
        await in_thread(self.batch.owner, self._folder.write_batch, self.batch)

    async def write_progress(self, interval_s: float) -> None:
        """Write the record if it counts other results than `interval_s` seconds ago."""
        if self._unwritten_results and time.monotonic() - self._written_at > interval_s:
            await self.write()

    async def close(self) -> None:
        """Write the record so that the batch can be opened again, which is quick unless a request was put back."""

        def close() -> None:
            start = self._read[0][1].start if self._read else self._start
            in_order = not self._answered and not self._again
            self.batch.closed_at = self._closed(start) if in_order else None
            self._folder.write_batch(self.batch)

        await in_thread(self.batch.owner, close)

    async def finish(self) -> None:
        """Make files of the results, and the record that of an ended batch.

        Nothing else may be in progress. Done again after a crash, it makes the same files.
        """
        await in_thread(self.batch.owner, self._finish)

    def _finish(self) -> None:
        batch, folder = self.batch, self._folder
        cancelling_at = folder.cancelling_at(batch.id)
        if batch.finalizing_at is None:
            if cancelling_at is None and self.left and time.time() >= batch.expires_at:
                self._expire()
            batch.cancelling_at = cancelling_at
            if cancelling_at is None:
                batch.status = "finalizing"
            batch.finalizing_at = int(time.time())
            batch.output_file_id = new_id("file-") if batch.done.count else None
            batch.error_file_id = new_id("file-") if batch.failed.count else None
            folder.write_batch(batch)
        kinds: tuple[tuple[Literal["output", "errors"], Path, str | None], ...] = (
            ("output", self._output, batch.output_file_id),
            ("errors", self._errors, batch.error_file_id),
        )
        for kind, path, file_id in kinds:
            if file_id is None:
                path.unlink(missing_ok=True)
            else:
                name = f"{batch.id}_{kind}.jsonl"
                folder.adopt_file(path, file_id, name, "batch_output", batch.output_expires_s, batch.owner)
        # One that was cancelled before it was validated has no requests yet.
        if batch.cancelling_at is not None and (self.left > 0 or not batch.total):
            batch.status, batch.cancelled_at = "cancelled", int(time.time())
        elif batch.errors:
            batch.status, batch.failed_at = "failed", int(time.time())
        elif batch.ran_out:
            batch.status, batch.expired_at = "expired", int(time.time())
        else:
            batch.status, batch.completed_at = "completed", int(time.time())
        folder.write_batch(batch)

    def _expire(self) -> None:
        """Write the results of requests for which there was no time."""
        answered = self._count_results()
        for _, text in lines.texts(self._source, self._max_bytes):
            line = lines.parse(text)
            if line.custom_id not in answered:
                result = lines.not_run(line, "batch_expired", "The batch expired before this request was answered.")
                lines.append(self._errors, result)
                self.batch.failed.add(result)
                self.batch.ran_out = True

    def _count_results(self) -> set[str]:
        """Count the results on disk anew; return the `custom_id`s of their requests."""
        batch = self.batch
        batch.done, batch.failed = Tally(), Tally()
        return lines.resume(self._output, batch.done) | lines.resume(self._errors, batch.failed)

    def _closed(self, start: int) -> Closed:
        """State of the files, where the lines before `start` have results."""
        return Closed(start, *(path.stat().st_size if path.exists() else 0 for path in (self._output, self._errors)))
