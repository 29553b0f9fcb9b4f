"""Folder of files and batches: one JSON object next to each file's bytes, and one for each batch.

Several instances and servers may share it. A write replaces a file as a whole. Only the holder of a batch's lock writes
its object; a client that cancels leaves a mark next to it.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import msgspec

from openai_bls.api.batches.records import ENDED, KEPT_S, BatchEntry, BatchRecord, FileRecord
from openai_bls.api.common.encoding import encode, new_id

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
_UNFINISHED = ".part"
"""Ending of a file that is being copied in; whoever does it holds its lock."""
_ABANDONED_S = 60.0
"""Seconds after the last write of such a file, from which on one without a lock is what a crash has left."""
_SETTLED_NS = 2_000_000_000
"""Age in nanoseconds of a change from which on a later one has another time: no file system counts in longer steps."""
BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")

RecordT = TypeVar("RecordT", FileRecord, BatchRecord, BatchEntry)


class Folder:
    """The folder's files. Every method but `locked` and `cancelling_at` may take a while: they are for threads.

    Args:
        root: folder that holds everything; created if it is missing.
    """

    def __init__(self, root: Path) -> None:
        self._files = root / "files"
        self._batches = root / "batches"
        self._reading = threading.Lock()
        self._listing = threading.Lock()
        self._ended: dict[str, BatchEntry] = {}
        """Ended batches, which need not be read again."""
        self._known_files: dict[str, tuple[int, FileRecord]] = {}
        """Number of the file and content of the records that `files` has read, by their names."""
        self._unended: dict[str, tuple[tuple[int, ...] | None, BatchRecord]] = {}
        """State of the file and content of the batches that `unended` has read, by their ids; no state where a change
        might not be told from the one before."""

    def make(self) -> None:
        """Make the folder, for this user alone."""
        for folder in (self._files, self._batches):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    # Files

    def data(self, file_id: str) -> Path:
        """Path of a file's bytes."""
        return self._files / f"{file_id}.data"

    def add_file(self, source: IO[bytes], filename: str, purpose: str, expires_s: int | None, owner: str) -> FileRecord:
        """Copy a file in."""
        self.make()
        file_id = new_id("file-")
        unfinished = self._files / f"{file_id}{_UNFINISHED}"
        try:
            with unfinished.open("xb") as target:
                fcntl.flock(target, fcntl.LOCK_EX)
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
                return self.adopt_file(unfinished, file_id, filename, purpose, expires_s, owner)
        except BaseException:
            # Without its record nobody would find it, and a full disk would stay full.
            self.data(file_id).unlink(missing_ok=True)
            raise
        finally:
            unfinished.unlink(missing_ok=True)

    def adopt_file(
        self, source: Path, file_id: str, filename: str, purpose: str, expires_s: int | None, owner: str
    ) -> FileRecord:
        """Take a file that lies in the folder under its id. Done again after a crash, it changes nothing."""
        if source.exists():
            source.replace(self.data(file_id))
        now = int(time.time())
        expires_at = None if expires_s is None else now + expires_s
        size = self.data(file_id).stat().st_size
        record = FileRecord(file_id, size, now, filename, purpose, expires_at, owner)
        _write(self._files / f"{file_id}.json", encode(record))
        return record

    def file(self, file_id: str) -> FileRecord | None:
        """The file of that id; None if there is none, or it has expired."""
        if not FILE_ID.fullmatch(file_id):
            return None
        found = _read(self._files / f"{file_id}.json", FileRecord)
        return None if found is None or _expired(found) else found

    def files(self) -> list[FileRecord]:
        """All files, the oldest first."""
        return _oldest_first(record for record in self._kept_files() if not _expired(record))

    def _kept_files(self) -> list[FileRecord]:
        """All files, those whose time is over included.

        Costs a listing of the folder; only records that have been replaced are read.
        """
        with self._listing:
            known: dict[str, tuple[int, FileRecord]] = {}
            for name, number in self._file_records():
                found = self._known_files.get(name)
                if found is None or found[0] != number:
                    record = _read(self._files / name, FileRecord)
                    if record is None:
                        continue
                    found = (number, record)
                known[name] = found
            self._known_files = known
        return [record for _, record in known.values()]

    def _file_records(self) -> list[tuple[str, int]]:
        """Names of the files' records, and the numbers (inodes) of those files."""
        try:
            with os.scandir(self._files) as entries:
                return [(e.name, e.inode()) for e in entries if e.name.startswith("file-") and e.name.endswith(".json")]
        except FileNotFoundError:
            return []

    def delete_file(self, file_id: str) -> None:
        """Delete a file."""
        (self._files / f"{file_id}.json").unlink(missing_ok=True)
        self.data(file_id).unlink(missing_ok=True)

    def delete_expired(self) -> None:
        """Delete the files and the ended batches whose time is over; inputs of batches stay until these have ended.

        What a crash has left of an upload goes, too.
        """
        inputs = {batch.input_file_id for batch in self.unended()}
        for entry in self.entries():
            if entry.ended_at is not None and entry.ended_at + KEPT_S <= time.time():
                self.forget(entry.id)
        for record in self._kept_files():
            if _expired(record) and record.id not in inputs:
                self.delete_file(record.id)
        for path in self._files.glob(f"*{_UNFINISHED}"):
            # Gone meanwhile, or locked.
            with contextlib.suppress(OSError), path.open("r+b") as unfinished:
                if os.fstat(unfinished.fileno()).st_mtime + _ABANDONED_S <= time.time():
                    fcntl.flock(unfinished, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()

    # Batches

    def write_batch(self, batch: BatchRecord) -> None:
        """Write a batch's object: a new one, or one whose lock is held."""
        self.make()
        _write(self._batches / f"{batch.id}.json", encode(batch))

    def batch(self, batch_id: str) -> BatchRecord | None:
        """The batch of that id; None if there is none."""
        if not BATCH_ID.fullmatch(batch_id):
            return None
        found: BatchRecord | None = _read(self._batches / f"{batch_id}.json", BatchRecord)
        return found if found is None or found.status in ENDED else self._marked(found)

    def _marked(self, batch: BatchRecord) -> BatchRecord:
        """A batch that has not ended, which is `cancelling` if it is to be cancelled."""
        batch.cancelling_at = self.cancelling_at(batch.id)
        if batch.cancelling_at is not None:
            batch.status = "cancelling"
        return batch

    def entries(self) -> list[BatchEntry]:
        """All batches, the oldest first. Costs what `unended` does."""
        found = {batch.id: BatchEntry.of(batch) for batch in self.unended()}
        with self._reading:
            found |= self._ended
        return _oldest_first(found.values())

    def forget(self, batch_id: str) -> None:
        """Delete a batch that has ended; its files stay."""
        # The object last: without it nobody would find the others.
        for suffix in ("output.jsonl", "errors.jsonl", "cancel", "lock", "json"):
            (self._batches / f"{batch_id}.{suffix}").unlink(missing_ok=True)

    def unended(self) -> list[BatchRecord]:
        """The batches that have not ended, the oldest first.

        Costs a listing of the folder and a `stat` for each of them; only those that have changed are read, and those
        that changed two seconds ago or less.
        """
        try:
            with os.scandir(self._batches) as entries:
                names = {entry.name for entry in entries}
        except FileNotFoundError:
            return []
        ids = {name.removesuffix(".json") for name in names if name.endswith(".json")}
        with self._reading:
            for batch_id in self._ended.keys() - ids:
                del self._ended[batch_id]
            unknown = ids - self._ended.keys()
            found = [batch for batch_id in unknown if (batch := self._unended_batch(batch_id)) is not None]
            self._unended = {batch.id: self._unended[batch.id] for batch in found}
        return _oldest_first(self._marked(batch) if f"{batch.id}.cancel" in names else batch for batch in found)

    def _unended_batch(self, batch_id: str) -> BatchRecord | None:
        """A batch as it is in its file, which is read if it has changed; None if it has ended, or is none."""
        if not BATCH_ID.fullmatch(batch_id):
            return None
        path = self._batches / f"{batch_id}.json"
        now = time.time_ns()
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        state = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._unended.get(batch_id)
        if known is None or known[0] != state:
            batch = _read(path, BatchRecord)
            if batch is None:
                return None
            if batch.status in ENDED:
                self._ended[batch_id] = BatchEntry.of(batch, status.st_size)
                return None
            # Two changes soon after each other may have the same time, size and, as inodes are used again, inode.
            known = self._unended[batch_id] = (state if now - status.st_mtime_ns > _SETTLED_NS else None, batch)
        return copy.copy(known[1])

    def cancel(self, batch_id: str) -> None:
        """Leave the mark that a batch is to be cancelled."""
        with contextlib.suppress(FileExistsError):
            self._mark(batch_id).touch(exist_ok=False)

    def cancelled_of(self, batch_ids: Iterable[str]) -> list[str]:
        """Batches among `batch_ids` that are to be cancelled."""
        return [batch_id for batch_id in batch_ids if self._mark(batch_id).exists()]

    def cancelling_at(self, batch_id: str) -> int | None:
        """Unix time at which the batch was to be cancelled; None if it was not."""
        try:
            return int(self._mark(batch_id).stat().st_mtime)
        except FileNotFoundError:
            return None

    def results(self, batch_id: str, kind: Literal["output", "errors"]) -> Path:
        """Path of the results up to now of a batch that has not ended."""
        return self._batches / f"{batch_id}.{kind}.jsonl"

    @contextlib.contextmanager
    def locked(self, batch_id: str) -> Iterator[bool]:
        """The batch's lock for as long as the block lasts; False if somebody else has it. The dead have none."""
        path = self._batches / f"{batch_id}.lock"
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            try:
                yield True
            finally:
                # Of a batch that was forgotten before it was locked: nobody else would delete it.
                if not path.with_suffix(".json").exists():
                    path.unlink(missing_ok=True)

    def _mark(self, batch_id: str) -> Path:
        return self._batches / f"{batch_id}.cancel"


def _oldest_first(records: Iterable[RecordT]) -> list[RecordT]:
    return sorted(records, key=lambda record: (record.created_at, record.id))


def _expired(record: FileRecord) -> bool:
    return record.expires_at is not None and record.expires_at <= time.time()


def _read(path: Path, cls: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=cls)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, text: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
