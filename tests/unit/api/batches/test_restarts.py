"""Batches of instances that end, that share a folder, or whose disk is full."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from openai_bls.api.batches import lines, runner
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.records import KEPT_S, BatchRecord
from tests.unit.api.batches.support import ID, jsonl, request, requests, served
from tests.unit.core_support import until


async def test_a_batch_goes_on_after_its_server_has_ended(tmp_path: Path) -> None:
    """A result that was half written is made again, none that was written whole."""
    async with served(tmp_path, batch_concurrency=2, held=True) as place:
        created = await place.create(*requests("r", 6))
        before = 2
        for _ in range(before):
            await until(lambda: len(place.in_flight) == 2)
            place.answer()
        await until(lambda: len(place.in_flight) == 2)
    written = place.folder.results(created["id"], "output").read_bytes().splitlines()
    assert len(written) == before
    with place.folder.results(created["id"], "output").open("ab") as file:
        file.write(b'{"id": "batch_req_1", "custom')
    async with served(tmp_path) as place:
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
        assert len(place.sent) == 6 - before
        assert set(await place.results(batch["output_file_id"])) == {f"r{at}" for at in range(6)}


async def test_a_server_that_ends_while_it_finishes(tmp_path: Path) -> None:
    """The files that it has made, or was to make, are there once."""
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(request("a")))["id"])
    for moved in (True, False):
        record = place.record(batch["id"])
        record.status, record.completed_at = "finalizing", None
        place.folder.write_batch(record)
        if not moved:
            place.folder.data(batch["output_file_id"]).rename(place.folder.results(batch["id"], "output"))
        async with served(tmp_path) as again:
            assert (await again.ended(batch["id"]))["output_file_id"] == batch["output_file_id"]
            assert set(await again.results(batch["output_file_id"])) == {"a"}
            assert not again.sent


async def test_instances_share_a_folder(tmp_path: Path) -> None:
    async with served(tmp_path) as one, served(tmp_path) as other:
        created = await one.create(*requests("r", 20))
        batch = await other.ended(created["id"])
        assert batch["request_counts"]["completed"] == 20
        # One of them did all of it.
        assert sorted(map(len, (one.sent, other.sent))) == [0, 20]


async def test_instances_take_turns_at_more_batches_than_they_have_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch goes from one to the other between its rounds."""
    monkeypatch.setattr(runner, "MAX_OPEN", 1)
    monkeypatch.setattr(runner, "ROUND", 2)
    async with served(tmp_path) as one, served(tmp_path) as other:
        created = [await one.create(*requests(f"{at}:", 40)) for at in range(5)]
        for batch in created:
            done = await other.ended(batch["id"])
            assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
            assert len(await one.results(done["output_file_id"])) == 40
        assert len({*one.sent, *other.sent}) == len(one.sent) + len(other.sent) == 200


async def test_a_batch_of_another_instance_is_cancelled(tmp_path: Path) -> None:
    async with served(tmp_path, held=True) as one, served(tmp_path, held=True) as other:
        created = await one.create(*requests("r", 20))
        await until(lambda: one.sent or other.sent)
        for place in (one, other):
            await place.cancel(created["id"])
        assert (await one.ended(created["id"]))["status"] == "cancelled"


async def test_a_batch_that_rests_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runner, "PACE", runner.PACE._replace(rest_s=1000.0))
    async with served(tmp_path) as place:
        monkeypatch.setattr(lines, "append", full)
        created = await place.create(*requests("r", 4))
        await until(lambda: place.sent and place.is_free(created["id"]))
        assert (await place.get(created["id"]))["status"] == "in_progress"
        await place.cancel(created["id"])
        assert (await place.ended(created["id"]))["status"] == "cancelled"


async def test_a_batch_whose_input_is_gone_fails(tmp_path: Path) -> None:
    """It was deleted by another hand than the server's."""
    async with served(tmp_path, held=True) as place:
        created = await place.create(*requests("r", 4))
        await until(lambda: place.sent)
    place.folder.data(created["input_file_id"]).unlink()
    async with served(tmp_path) as again:
        failed = await again.ended(created["id"])
        assert (failed["status"], failed["errors"]["data"][0]["code"]) == ("failed", "invalid_input_file")


async def test_a_batch_that_is_done_when_its_time_is_over_is_completed(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        done = await place.ended((await place.create(request("a")))["id"])
        record = place.record(done["id"])
    # As if the server had ended before it made the files.
    place.folder.data(done["output_file_id"]).rename(place.folder.results(record.id, "output"))
    record.status, record.completed_at, record.finalizing_at, record.expires_at = "in_progress", None, None, 1
    place.folder.write_batch(record)
    async with served(tmp_path) as again:
        assert (await again.ended(record.id))["status"] == "completed"


async def test_the_input_of_a_batch_stays_until_it_has_ended(tmp_path: Path) -> None:
    async with served(tmp_path, batch_concurrency=1, held=True) as place:
        created = await place.create(request("a"), request("b"))
        await until(lambda: place.sent)
        file_id = created["input_file_id"]
        source = place.folder.file(file_id)
        assert source is not None
        source.expires_at = 1
        (tmp_path / "files" / f"{file_id}.json").write_bytes(msgspec.json.encode(source))
        place.folder.delete_expired()
        assert (await place.client.get(f"/v1/files/{file_id}")).status_code == 404
    async with served(tmp_path) as again:
        assert (await again.ended(created["id"]))["request_counts"]["completed"] == 2
        await until(lambda: not again.folder.data(file_id).exists())


async def test_ended_batches_go_after_their_time(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(request("a")))["id"])
        record = place.record(batch["id"])
    # By no instance that knows it already.
    record.completed_at = int(time.time()) - KEPT_S
    place.folder.write_batch(record)
    async with served(tmp_path):
        await until(lambda: not list((tmp_path / "batches").glob(f"{record.id}*")))


async def test_an_instance_ends_though_a_batch_has_just_begun(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        # Its runner is told of the batch and cancelled in one turn of the event loop.
        await place.create(request("a"))


async def test_a_full_disk_stops_a_batch_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, full = lines.append, [OSError("No space left on device")]

    def fill(path: Path, text: bytes) -> None:
        if full:
            raise full.pop()
        append(path, text)

    monkeypatch.setattr(lines, "append", fill)
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(request("a"), request("b")))["id"])
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert set(await place.results(batch["output_file_id"])) == {"a", "b"}


async def test_a_lock_is_held_as_long_as_its_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path, held=True) as place:
        created = await place.create(*requests("r", 20))
        await until(lambda: place.sent)
        writing, may_write, write = threading.Event(), threading.Event(), Folder.write_batch

        def slow(folder: Folder, batch: BatchRecord) -> None:
            writing.set()
            may_write.wait(10)
            write(folder, batch)

        monkeypatch.setattr(Folder, "write_batch", slow)
        place.answer()
        await until(writing.is_set)
        asyncio.get_running_loop().call_later(0.02, may_write.set)
    with Folder(tmp_path).locked(created["id"]) as mine:
        assert mine
        assert may_write.is_set()


async def test_an_expired_batch_tells_what_was_not_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        uploaded = (await place.upload(jsonl(request("a"), request("b")))).json()
        now = int(time.time())
        record = BatchRecord(f"batch_{ID}", "/v1/completions", uploaded["id"], now - 10, now - 5)
        place.folder.write_batch(record)
        batch = await place.ended(record.id)
        assert (batch["status"], batch["request_counts"]["failed"]) == ("expired", 2)
        bad = await place.results(batch["error_file_id"])
        assert {line["error"]["code"] for line in bad.values()} == {"batch_expired"}
