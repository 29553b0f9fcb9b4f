"""Lines and results of an open batch, closed and opened again or left by a crash."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.batches import folder as folder_module
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.lines import Line, Place
from openai_bls.api.batches.open_batch import OpenBatch
from openai_bls.api.batches.records import BatchRecord
from openai_bls.api.common.encoding import encode
from tests.unit.api.batches.support import ID, jsonl, requests


def record(folder: Folder, count: int) -> BatchRecord:
    """A batch of requests `r0`, `r1` and so on, which has been validated."""
    source = folder.add_file(io.BytesIO(jsonl(*requests("r", count))), "in.jsonl", "batch", None, "")
    now = int(time.time())
    batch = BatchRecord(f"batch_{ID}", "/v1/completions", source.id, now, now + 1000, status="in_progress", total=count)
    folder.write_batch(batch)
    return batch


async def opened(folder: Folder) -> OpenBatch:
    batch = folder.batch(f"batch_{ID}")
    assert batch is not None
    found = OpenBatch(folder, batch, 1000)
    await found.open()
    return found


async def taken(batch: OpenBatch) -> tuple[Line, Place]:
    found = await batch.next()
    assert found is not None
    return found


async def answered(batch: OpenBatch, line: Line, status: int = 200) -> None:
    await batch.add(line, status, "req", b'{"usage": {"prompt_tokens": 1}}')


async def test_a_closed_batch_is_opened_without_reading_its_results(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    record(folder, 4)
    batch = await opened(folder)
    for status in (200, 400):
        line, _ = await taken(batch)
        await answered(batch, line, status)
    await batch.close()
    results = folder.results(f"batch_{ID}", "output")
    results.write_bytes(b"x" * results.stat().st_size)
    batch = await opened(folder)
    assert (batch.left, batch.batch.done.count, batch.batch.failed.count) == (2, 1, 1)
    assert (await taken(batch))[0].custom_id == "r2"


async def test_a_request_that_is_put_back_comes_after_the_others(tmp_path: Path) -> None:
    """Such as one for a model that is not loaded; the state of files then does not tell what has been answered."""
    folder = Folder(tmp_path)
    record(folder, 3)
    batch = await opened(folder)
    line, place = await taken(batch)
    batch.put_back(place)
    for custom_id in ("r1", "r2"):
        line, _ = await taken(batch)
        assert line.custom_id == custom_id
        await answered(batch, line)
    await batch.close()
    for again in (batch, await opened(folder)):
        line, _ = await taken(again)
        assert line.custom_id == "r0"
        assert await again.next() is None


@settings(max_examples=40)
@given(st.integers(1, 12), st.lists(st.sampled_from(["answer", "refuse", "close", "crash", "torn"]), max_size=40))
def test_a_request_has_one_result(count: int, steps: list[str]) -> None:
    """Whatever comes in between, the batch ends with one result for each request."""

    async def main(folder: Folder) -> None:
        record(folder, count)
        batch = await opened(folder)
        for step in [*steps, *["answer"] * count]:
            if step == "close":
                await batch.close()
            if step == "torn":
                with folder.results(f"batch_{ID}", "output").open("ab") as file:
                    file.write(b'{"id": "batch_req_1", "custom')
            if step in ("close", "crash", "torn"):
                batch = await opened(folder)
                continue
            found = await batch.next()
            if found is None:
                assert batch.left == 0
                continue
            line, place = found
            if step == "answer":
                await answered(batch, line, 200 if line.custom_id != "r1" else 400)
            else:
                batch.put_back(place)
        assert (batch.left, await batch.next()) == (0, None)
        await batch.finish()
        ended = batch.batch
        assert (ended.status, ended.done.count, ended.failed.count) == ("completed", count - (count > 1), count > 1)
        ids: Counter[str] = Counter()
        for file_id in (ended.output_file_id, ended.error_file_id):
            if file_id is not None:
                ids.update(json.loads(line)["custom_id"] for line in folder.data(file_id).read_bytes().splitlines())
        assert ids == Counter(f"r{at}" for at in range(count))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Folder(Path(folder))))


def test_a_look_for_batches_reads_those_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    source = folder.add_file(io.BytesIO(b"{}"), "in.jsonl", "batch", None, "")
    batches = [BatchRecord(f"batch_{at:032x}", "/v1/completions", source.id, at, 2**40) for at in range(20)]
    for batch in batches:
        folder.write_batch(batch)
    age(tmp_path, *batches)
    read: list[str] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path.stem)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert [batch.id for batch in folder.unended()] == [batch.id for batch in batches] == sorted(read)
    read.clear()
    folder.cancel(batches[3].id)
    batches[5].status, batches[5].completed_at = "completed", 1
    batches[7].total = 5
    for at in (5, 7):
        folder.write_batch(batches[at])
        age(tmp_path, batches[at])
    found = {batch.id: batch for batch in folder.unended()}
    assert sorted(read) == [batches[5].id, batches[7].id]
    assert set(found) == {batch.id for batch in batches} - {batches[5].id}
    assert [batch.id for batch in found.values() if batch.status == "cancelling"] == [batches[3].id]
    assert found[batches[7].id].total == 5
    read.clear()
    assert len(folder.unended()) == 19
    assert read == []


def age(folder: Path, *batches: BatchRecord) -> None:
    """Make the last changes of records a minute older."""
    for batch in batches:
        path = folder / "batches" / f"{batch.id}.json"
        then = path.stat().st_mtime_ns - 60 * 10**9
        os.utime(path, ns=(then, then))


@given(
    st.sampled_from([1, 4_000_000, 1_000_000_000, 2_000_000_000]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3_000_000_000), st.booleans()), max_size=12),
)
def test_a_record_is_what_was_written_last_whatever_its_file_looks_like(
    tick: int, steps: list[tuple[int, int, bool]]
) -> None:
    """Within a tick (of nanoseconds) a later record may have the inode, the size and the time of the one before."""
    now = 10**18
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "time", SimpleNamespace(time_ns=lambda: now))
        folder = Folder(Path(root))
        batch = BatchRecord(f"batch_{1:032x}", "/v1/completions", "file", 1, 2**40)
        folder.write_batch(batch)
        path = Path(root, "batches", f"{batch.id}.json")
        for total, passed, writes in [(0, 0, True), *steps]:
            now += passed
            if writes:
                batch.total = total
                path.write_bytes(encode(batch))
                os.utime(path, ns=(now, now // tick * tick))
            assert [one.total for one in folder.unended()] == [batch.total]
