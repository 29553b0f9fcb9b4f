"""Room for files: the shares of several keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.batches import files
from openai_bls.api.batches.records import FileRecord
from openai_bls.api.batches.room import Upload, files_to_delete
from openai_bls.core.errors import InvalidRequestError, OverloadedError
from tests.unit.api.batches.support import jsonl, request, served

MAX_FILES = 6
MAX_BYTES = 60


def records(owned: list[tuple[str, int]]) -> list[FileRecord]:
    return [FileRecord(f"file-{at}", size, at, "f", "batch", None, key) for at, (key, size) in enumerate(owned)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=8),
    st.sets(st.integers(0, 7), max_size=3),
    st.sampled_from("abc"),
    st.integers(0, 30),
)
def test_a_file_takes_from_those_that_have_more_than_their_share(
    owned: list[tuple[str, int]], pinned: set[int], key: str, size: int
) -> None:
    kept = records(owned)
    inputs = {f"file-{at}" for at in pinned}
    own = [record.bytes for record in kept if record.owner == key]
    keys = {key, *(record.owner for record in kept)}
    within = (len(own) + 1) * len(keys) <= MAX_FILES and (sum(own) + size) * len(keys) <= MAX_BYTES
    try:
        going = files_to_delete(kept, inputs, [], Upload(key, size), MAX_FILES, MAX_BYTES)
    except InvalidRequestError:
        assert not within
        return
    except OverloadedError:
        assert inputs
        return
    left = [record for record in kept if record.id not in going]
    assert len(left) < MAX_FILES
    assert sum(record.bytes for record in left) + size <= MAX_BYTES
    for record in kept:
        if record.id in going:
            mine = [other for other in kept if other.owner == record.owner]
            # Never one's own, an input, or of a key within its share.
            assert record.owner != key
            assert record.id not in inputs
            assert len(mine) * len(keys) > MAX_FILES or sum(one.bytes for one in mine) * len(keys) > MAX_BYTES
            older = [one.id for one in mine if one.created_at < record.created_at and one.id not in inputs]
            assert set(older) <= set(going)


def test_files_on_their_way_count() -> None:
    others = [Upload("a", 30)]
    assert files_to_delete([], (), others, Upload("a", 30), MAX_FILES, MAX_BYTES) == []
    with pytest.raises(InvalidRequestError):
        files_to_delete([], (), others, Upload("a", 31), MAX_FILES, MAX_BYTES)
    assert files_to_delete([], (), others, Upload("b", 30), MAX_FILES, MAX_BYTES) == []
    with pytest.raises(InvalidRequestError):
        files_to_delete([], (), others, Upload("b", 31), MAX_FILES, MAX_BYTES)


async def test_one_key_fills_the_folder_and_another_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES_FACTOR", 2)
    keys = tmp_path / "keys"
    keys.write_text("a: a\nb: b\n", encoding="utf-8")
    async with served(tmp_path / "files", api_keys_file=str(keys), max_file_bytes=500) as place:
        place.use_key("b")
        small = (await place.upload(b"x" * 100)).json()["id"]
        place.use_key("a")
        batch_input = (await place.upload(jsonl(request("r")).ljust(200))).json()["id"]
        place.held = True
        created = await place.client.post(
            "/v1/batches",
            json={"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": batch_input},
        )
        assert created.status_code == 200
        mine = []
        while (reply := await place.upload(b"y" * 200)).status_code == 200:
            mine.append(reply.json()["id"])
        assert (len(mine), reply.json()["error"]["code"]) == (3, "storage_quota_exceeded")
        place.use_key("b")
        assert (await place.upload(b"z" * 300)).status_code == 200
        listed = (await place.client.get("/v1/files")).json()["data"]
        assert small in {file["id"] for file in listed}
        place.use_key("a")
        listed = (await place.client.get("/v1/files")).json()["data"]
        # One is gone, and not the input of a batch that has not ended.
        left = {file["id"] for file in listed}
        assert (batch_input in left, len(left & set(mine)), len(left)) == (True, 2, 3)
        place.held = False
        await place.ended(created.json()["id"])


async def test_uploads_of_one_key_leave_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_UPLOADS", 2)
    keys = tmp_path / "keys"
    keys.write_text("a: a\nb: b\n", encoding="utf-8")
    async with served(tmp_path / "files", api_keys_file=str(keys)) as place:
        place.use_key("a")
        begun, may_end = asyncio.Event(), asyncio.Event()
        whole = place.client.build_request("POST", "/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch"})
        content = whole.read()

        async def slowly() -> AsyncIterator[bytes]:
            yield content[:10]
            begun.set()
            await may_end.wait()
            yield content[10:]

        headers = {"content-type": whole.headers["content-type"]}
        first = asyncio.ensure_future(place.client.post("/v1/files", content=slowly(), headers=headers))
        await begun.wait()
        refused = await place.upload(b"x")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        place.use_key("b")
        assert (await place.upload(b"x")).status_code == 200
        may_end.set()
        assert (await first).status_code == 200
        place.use_key("a")
        assert (await place.upload(b"x")).status_code == 200


async def test_a_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as place:
        ids = {(await place.upload(b"x")).json()["id"] for _ in range(3)}
        folder = place.folder
        assert {record.id for record in folder.files()} == ids
        read: list[Path] = []
        bytes_of = Path.read_bytes

        def noted(path: Path) -> bytes:
            if path.suffix == ".json" and path.stem in ids:
                read.append(path)
            return bytes_of(path)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", noted)
            assert {record.id for record in folder.files()} == ids
            assert not read
        gone = ids.pop()
        folder.delete_file(gone)
        assert {record.id for record in folder.files()} == ids
