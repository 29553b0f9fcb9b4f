"""Batches that have ended: how many are kept, and how large their records may be."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.batches import endpoints, lines, validation
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.records import BatchRecord
from tests.unit.api.batches.support import jsonl, request, requests, served

MODEL = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}


async def test_ended_batches_of_the_fullest_key_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_KEPT_BATCHES", 6)
    (tmp_path / "keys").write_text("alice: alice\nbob: bob\n", encoding="utf-8")
    folder = tmp_path / "folder"
    async with served(folder, api_keys_file=str(tmp_path / "keys")) as place:
        place.use_key("alice")
        alice = [(await place.ended((await place.create(b"{"))["id"]))["id"] for _ in range(6)]
        place.use_key("bob")
        bob = [(await place.ended((await place.create(b"{"))["id"]))["id"] for _ in range(3)]
        listed = (await place.client.get("/v1/batches")).json()["data"]
        assert {batch["id"] for batch in listed} == {*bob}
        kept = {entry.id for entry in place.folder.entries()}
        # The oldest go, whichever they are of those of the same second.
        assert (len(kept & {*alice}), kept - {*alice}) == (3, {*bob})
        assert {path.name.partition(".")[0] for path in (folder / "batches").iterdir()} == kept


async def test_a_key_may_not_have_more_by_asking_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_UNENDED_BATCHES", 3)
    async with served(tmp_path, held=True) as place:
        file = (await place.upload(jsonl(*requests("r", 2)))).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        answers = await asyncio.gather(*(place.client.post("/v1/batches", json=body) for _ in range(8)))
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [400] * 5


@pytest.mark.parametrize("line", [{"x" * 100_000: 1}, {**MODEL, "y" * 100_000: 1, "body": {}}])
async def test_a_fault_tells_little_of_a_long_line(tmp_path: Path, line: dict[str, object]) -> None:
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(*[line] * 50))["id"])
        assert [error["code"] for error in batch["errors"]["data"]] == ["invalid_json_line"] * 50
        (entry,) = place.folder.entries()
        assert entry.bytes < 50 * 1000


async def test_a_record_has_no_long_name_of_a_model(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(request("a", model="m" * 100_000)))["id"])
        assert (batch["model"], batch["request_counts"]["failed"]) == (None, 1)


def test_empty_lines_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_FILE_LINES", 8)
    folder = Folder(tmp_path)
    folder.make()
    for count, code in ((7, None), (8, "too_many_requests")):
        batch = BatchRecord("batch_" + "0" * 32, "/v1/completions", "file-" + "0" * 32, 0, 1)
        folder.data(batch.input_file_id).write_bytes(b"\n" * count + jsonl(request("a")) + b"\n")
        validation.validate(folder, batch, 1000)
        assert [error["code"] for error in batch.errors] == ([] if code is None else [code])


def test_a_file_of_nothing_but_empty_lines_is_read_in_little_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.make()
    batch = BatchRecord("batch_" + "0" * 32, "/v1/completions", "file-" + "0" * 32, 0, 1)
    folder.data(batch.input_file_id).write_bytes(b"\n" * (100 << 20))
    begun = time.thread_time()
    validation.validate(folder, batch, 1000)
    assert time.thread_time() - begun < 3
    assert batch.status == "failed"


@given(st.binary(max_size=100))
def test_lines_are_counted_by_their_ends(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(text)
    assert lines.count(path) == text.count(b"\n")


def test_a_batch_that_is_forgotten_before_it_is_locked_leaves_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_batch(BatchRecord("batch_" + "0" * 32, "/v1/completions", "file-" + "0" * 32, 0, 1))
    for kept in (True, False):
        if not kept:
            folder.forget("batch_" + "0" * 32)
        with folder.locked("batch_" + "0" * 32) as mine:
            assert mine
        assert any((tmp_path / "batches").iterdir()) == kept
