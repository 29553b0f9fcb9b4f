"""Files and batches over the whole application, answered by a fake engine; instances that share a folder or die."""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai.types import Batch, FileDeleted, FileObject

from openai_bls.api.batches import endpoints, lines, runner
from openai_bls.api.batches.folder import KEPT_S, BatchRecord, Folder
from openai_bls.core.engine import EngineStats
from openai_bls.core.errors import OverloadedError, RateLimitError
from tests.unit.api.http_support import application, until
from tests.unit.core_support import Bench

ID = "0" * 32
BATCH = {"endpoint": "/v1/completions", "completion_window": "24h"}


def request(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"prompt": custom_id, "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_SCAN_INTERVAL_S", 0.01), ("_TICK_S", 0.005), ("_WRITE_INTERVAL_S", 0.0), ("_REST_S", 0.0)):
        monkeypatch.setattr(runner, name, value)
    monkeypatch.setattr(runner, "_RETRY_S", (0.001, 0.002))
    monkeypatch.setattr(runner, "_DELETE_INTERVAL_S", 0.1)


class Place:
    """One instance and its client; the engine answers each request with its prompt, unless it is held."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = Folder(folder)
        self.bench = Bench(batches_dir=str(folder), **settings)
        self.app = application(self.bench)
        transport = httpx.ASGITransport(app=self.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self.held = False
        self.answered = 0

    async def feed(self) -> None:
        engine = self.bench.engine
        while True:
            while not self.held and self.answered < len(engine.requests):
                engine.deliver(self.answered, "ok", "stop")
                self.answered += 1
            await asyncio.sleep(0.001)

    async def upload(self, content: bytes, **fields: Any) -> httpx.Response:
        files = {"file": ("in.jsonl", content)}
        return await self.client.post("/v1/files", files=files, data={"purpose": "batch", **fields})

    async def create(self, *lines: Any, **body: Any) -> dict[str, Any]:
        uploaded = (await self.upload(jsonl(*lines))).json()
        asked = {**BATCH, "input_file_id": uploaded["id"], **body}
        created = await self.client.post("/v1/batches", json=asked)
        assert created.status_code == 200, created.text
        found: dict[str, Any] = created.json()
        Batch.model_validate(found)
        return found

    async def get(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(f"/v1/batches/{batch_id}")).json()
        Batch.model_validate(found)
        return found

    async def ended(self, batch_id: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while (found := await self.get(batch_id))["status"] not in ("completed", "failed", "cancelled", "expired"):
                await asyncio.sleep(0.005)
        return found

    async def results(self, file_id: str | None) -> dict[str, Any]:
        if file_id is None:
            return {}
        content = (await self.client.get(f"/v1/files/{file_id}/content")).text
        found = [json.loads(line) for line in content.splitlines()]
        assert len({line["custom_id"] for line in found}) == len(found)
        return {line["custom_id"]: line for line in found}


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[Place]:
    place = Place(folder, **settings)
    tasks = [asyncio.ensure_future(work()) for work in (place.feed, *place.app.state.background)]
    try:
        yield place
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await place.client.aclose()


async def test_a_batch(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        lines = [request("a"), request("b", what=1), b"", request("c", model="gpt")]
        created = await place.create(*lines, metadata={"k": "v"})
        assert created["status"] == "validating"
        batch = await place.ended(created["id"])
        assert (batch["status"], batch["metadata"], batch["model"]) == ("completed", {"k": "v"}, None)
        assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
        assert batch["usage"]["output_tokens"] == 2
        good, bad = await place.results(batch["output_file_id"]), await place.results(batch["error_file_id"])
        assert set(good) == {"a"}
        assert good["a"]["response"]["status_code"] == 200
        assert good["a"]["response"]["body"]["choices"][0]["text"] == "ok"
        assert good["a"]["error"] is None
        assert {key: line["response"]["status_code"] for key, line in bad.items()} == {"b": 400, "c": 404}
        assert bad["b"]["response"]["body"]["error"]["param"] == "what"
        files = (await place.client.get("/v1/files?purpose=batch_output")).json()["data"]
        assert {file["id"] for file in files} == {batch["output_file_id"], batch["error_file_id"]}
        listed = (await place.client.get("/v1/batches")).json()
        assert listed["data"] == [batch]
        again = await place.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert again.status_code == 400


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        ([b"{"], "invalid_json_line", 1),
        ([request("a"), b"\xff"], "invalid_json_line", 2),
        ([{**request("a"), "method": "GET"}], "invalid_method", 1),
        ([{**request("a"), "url": "/v1/embeddings"}], "mismatched_endpoint", 1),
        ([{**request("a"), "url": "/v1/files"}], "mismatched_endpoint", 1),
        ([request("a"), request("a")], "duplicate_custom_id", 2),
        ([request("a", stream=True)], "unsupported_parameter", 1),
        ([b"[" * 100_000], "invalid_json_line", 1),
        ([], "empty_file", None),
    ],
)
async def test_bad_files_fail_as_a_whole(tmp_path: Path, lines: list[Any], code: str, line: int | None) -> None:
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(*lines))["id"])
        assert batch["status"] == "failed"
        assert (batch["errors"]["data"][0]["code"], batch["errors"]["data"][0]["line"]) == (code, line)
        assert not place.bench.engine.requests


async def test_a_batch_goes_on_after_its_server_has_ended(tmp_path: Path) -> None:
    """A result that was half written is made again, none that was written whole."""
    async with served(tmp_path, batch_concurrency=2) as place:
        created = await place.create(*(request(f"r{at}") for at in range(6)))
        await until(lambda: place.answered >= 2)
        place.held = True
        await until(lambda: place.folder.results(created["id"], "output").exists())
        await until(lambda: len(place.bench.engine.requests) == place.answered + 2)
    before = place.answered
    written = place.folder.results(created["id"], "output").read_bytes().splitlines()
    assert len(written) == before
    with place.folder.results(created["id"], "output").open("ab") as file:
        file.write(b'{"id": "batch_req_1", "custom')
    async with served(tmp_path) as place:
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
        assert len(place.bench.engine.requests) == 6 - before
        assert set(await place.results(batch["output_file_id"])) == {f"r{at}" for at in range(6)}


async def test_a_server_that_ends_while_it_finishes(tmp_path: Path) -> None:
    """The files that it has made, or was to make, are there once."""
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(request("a")))["id"])
    for moved in (True, False):
        record = place.folder.batch(batch["id"])
        assert record is not None
        record.status, record.completed_at = "finalizing", None
        place.folder.write_batch(record)
        if not moved:
            place.folder.data(batch["output_file_id"]).rename(place.folder.results(batch["id"], "output"))
        async with served(tmp_path) as again:
            assert (await again.ended(batch["id"]))["output_file_id"] == batch["output_file_id"]
            assert set(await again.results(batch["output_file_id"])) == {"a"}
            assert not again.bench.engine.requests


async def test_instances_share_a_folder(tmp_path: Path) -> None:
    async with served(tmp_path) as one, served(tmp_path) as other:
        created = await one.create(*(request(f"r{at}") for at in range(20)))
        batch = await other.ended(created["id"])
        assert batch["request_counts"]["completed"] == 20
        # One of them did all of it.
        assert sorted(map(len, (one.bench.engine.requests, other.bench.engine.requests))) == [0, 20]


async def test_cancelling(tmp_path: Path) -> None:
    async with served(tmp_path, batch_concurrency=1) as place:
        place.held = True
        created = await place.create(*(request(f"r{at}") for at in range(4)))
        await until(lambda: len(place.bench.engine.requests) == 1)
        cancelling = (await place.client.post(f"/v1/batches/{created['id']}/cancel")).json()
        assert cancelling["status"] == "cancelling"
        batch = await place.ended(created["id"])
        assert (batch["status"], batch["output_file_id"]) == ("cancelled", None)
        assert place.bench.engine.cancelled == [place.bench.engine.requests[0].request_id]
        assert place.bench.service.in_progress == 0


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


async def test_a_batch_without_a_model_names_none(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        assert (await place.ended((await place.create(request("a")))["id"]))["model"] is None
        assert (await place.ended((await place.create(request("a", model="tiny")))["id"]))["model"] == "tiny"


async def test_a_batch_that_is_done_when_its_time_is_over_is_completed(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        done = await place.ended((await place.create(request("a")))["id"])
        record = place.folder.batch(done["id"])
        assert record is not None
    # As if the server had ended before it made the files.
    place.folder.data(done["output_file_id"]).rename(place.folder.results(record.id, "output"))
    record.status, record.completed_at, record.finalizing_at, record.expires_at = "in_progress", None, None, 1
    place.folder.write_batch(record)
    async with served(tmp_path) as again:
        assert (await again.ended(record.id))["status"] == "completed"


async def test_the_input_of_a_batch_stays_until_it_has_ended(tmp_path: Path) -> None:
    async with served(tmp_path, batch_concurrency=1) as place:
        place.held = True
        created = await place.create(request("a"), request("b"))
        await until(lambda: place.bench.engine.requests)
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
        record = place.folder.batch(batch["id"])
        assert record is not None
        record.completed_at = int(time.time()) - KEPT_S
        place.folder.write_batch(record)
        await until(lambda: not list((tmp_path / "batches").glob(f"{record.id}*")))


async def test_an_instance_ends_though_a_batch_has_just_begun(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        # Its runner is told of the batch and cancelled in one turn of the event loop.
        await place.create(request("a"))


async def test_a_few_batches_of_a_key_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_UNENDED_BATCHES", 6)
    monkeypatch.setattr(runner, "_WRITE_INTERVAL_S", 10.0)
    async with served(tmp_path, batch_concurrency=100) as place:
        place.held = True
        created = [await place.create(request("a")) for _ in range(6)]
        await until(lambda: len(place.bench.engine.requests) == runner._MAX_RUNNING_PER_KEY)
        body = {**BATCH, "input_file_id": created[0]["input_file_id"]}
        reply = await place.client.post("/v1/batches", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "batch_limit_exceeded")
        assert len(place.bench.engine.requests) == runner._MAX_RUNNING_PER_KEY
        place.held = False
        for one in created:
            assert (await place.ended(one["id"]))["status"] == "completed"
        assert (await place.client.post("/v1/batches", json=body)).status_code == 200


async def test_a_full_disk_stops_a_batch_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, full = runner._append, [OSError("No space left on device")]

    def fill(file: Any, text: bytes) -> None:
        if full:
            raise full.pop()
        append(file, text)

    monkeypatch.setattr(runner, "_append", fill)
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(request("a"), request("b")))["id"])
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert set(await place.results(batch["output_file_id"])) == {"a", "b"}


def test_half_a_result_is_not_left(tmp_path: Path) -> None:
    class NearlyFull(io.FileIO):
        def write(self, text: Any) -> int:
            return super().write(text[:5])

    with NearlyFull(tmp_path / "results", "ab") as file:
        runner._append(file, b"1234\n")
        with pytest.raises(OSError, match="No space"):
            runner._append(file, b"12345678\n")
    assert (tmp_path / "results").read_bytes() == b"1234\n"


async def test_a_lock_is_held_as_long_as_its_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as place:
        place.held = True
        created = await place.create(request("a"))
        await until(lambda: place.bench.engine.requests)
        writing, may_write, write = threading.Event(), threading.Event(), Folder.write_batch

        def slow(folder: Folder, batch: BatchRecord) -> None:
            writing.set()
            may_write.wait(10)
            write(folder, batch)

        monkeypatch.setattr(Folder, "write_batch", slow)
        await until(writing.is_set)
        asyncio.get_running_loop().call_later(0.02, may_write.set)
    with Folder(tmp_path).locked(created["id"]) as mine:
        assert mine
        assert may_write.is_set()


async def test_clients_need_certificates_and_batches_do_not(tmp_path: Path) -> None:
    async with served(tmp_path, ssl_ca_certs="ca.pem") as place:
        uploaded = place.folder.add_file(io.BytesIO(jsonl(request("a"))), "in.jsonl", "batch", None, "")
        record = BatchRecord(f"batch_{ID}", "/v1/completions", uploaded.id, 1, 2**40)
        place.folder.write_batch(record)
        await until(lambda: (found := place.folder.batch(record.id)) is not None and found.ended_at)
        found = place.folder.batch(record.id)
        assert found is not None
        assert (found.done.count, found.failed.count) == (1, 0)


def test_a_line_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n" + b"x" * 15_000 + b"\nb\n\nc")
    found = list(lines.texts(path, 1))
    assert [(number, text[:1]) for number, text in found] == [(1, b"a"), (2, b"x"), (3, b"b"), (5, b"c")]


def test_a_result_is_one_line_and_counts_whatever_its_body_is() -> None:
    line = lines.parse(json.dumps(request("a")).encode())
    for body, tokens in (
        ({"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}, (3, 2)),
        ({"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}}, (0, 0)),
        ({"usage": "much"}, (0, 0)),
    ):
        text = lines.result(line, 200, "r", json.dumps(body, indent=2).encode())
        assert text.count(b"\n") == 1
        tally = lines.Tally()
        assert tally.add(text) == "a"
        assert (tally.count, tally.input_tokens, tally.cached_tokens) == (1, *tokens)


async def test_others_go_first(tmp_path: Path) -> None:
    """No request of a batch begins while sequences wait; one that is turned away comes again."""
    async with served(tmp_path, batch_concurrency=2) as place:
        place.bench.engine.stats = EngineStats(1, 1, 0.0, 0, 0)
        created = await place.create(*(request(f"r{at}") for at in range(3)))
        await until(lambda: place.folder.results(created["id"], "output").exists())
        await asyncio.sleep(0.05)
        assert not place.bench.engine.requests
        place.bench.engine.stats = EngineStats(1, 0, 0.0, 0, 0)
        refusals = [OverloadedError("full"), RateLimitError("full", reason="in_progress")]
        check = place.bench.service.check_admission

        def full() -> None:
            if refusals:
                raise refusals.pop()
            check()

        place.bench.service.check_admission = full  # type: ignore[method-assign]
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert not refusals


async def test_a_batch_waits_with_what_waits_for_an_engine(tmp_path: Path) -> None:
    async with served(tmp_path, batch_concurrency=2) as place:
        service = place.bench.service
        admission = service.admission(next(iter(service.models)))
        place.held = True
        # More than the engine and what is sent ahead; the engine itself says that nothing waits in it.
        body = {"prompt": "x", "max_tokens": 4}
        asking = [asyncio.ensure_future(place.client.post("/v1/completions", json=body)) for _ in range(12)]
        await until(lambda: admission.waiting > 0)
        created = await place.create(request("r"))
        await until(lambda: place.folder.results(created["id"], "output").exists())
        await asyncio.sleep(0.05)
        assert service.in_progress == len(asking)
        place.held = False
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def test_a_refusal_that_no_waiting_helps_is_a_result(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k: k tokens_per_minute=10\n")
    async with served(tmp_path / "b", api_keys_file=str(tmp_path / "keys")) as place:
        place.client.headers["authorization"] = "Bearer k"
        created = await place.create(request("x" * 20), request("y"))
        batch = await place.ended(created["id"])
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        (result,) = (await place.results(batch["error_file_id"])).values()
        assert result["response"]["status_code"] == 429


async def test_files(tmp_path: Path) -> None:
    async with served(tmp_path, max_file_bytes=1000) as place:
        first = (
            await place.upload(b"one", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
        ).json()
        FileObject.model_validate(first)
        assert (first["bytes"], first["filename"], first["expires_at"]) == (3, "in.jsonl", first["created_at"] + 3600)
        second = (await place.upload(b"two")).json()
        assert (await place.client.get(f"/v1/files/{first['id']}")).json() == first
        assert (await place.client.get(f"/v1/files/{first['id']}/content")).content == b"one"
        assert {file["id"] for file in (await place.client.get("/v1/files")).json()["data"]} == {
            first["id"],
            second["id"],
        }
        page = (await place.client.get("/v1/files?limit=1&order=asc")).json()
        assert (len(page["data"]), page["has_more"]) == (1, True)
        deleted = (await place.client.delete(f"/v1/files/{first['id']}")).json()
        assert FileDeleted.model_validate(deleted).deleted
        assert (await place.client.get(f"/v1/files/{first['id']}")).status_code == 404
        for path in (f"file-{ID}", "file-x", "..%2f..%2fetc%2fpasswd"):
            assert (await place.client.get(f"/v1/files/{path}/content")).status_code == 404
        record = place.folder.file(second["id"])
        assert record is not None
        record.expires_at = 1
        (tmp_path / "files" / f"{record.id}.json").write_bytes(msgspec.json.encode(record))
        assert (await place.client.get(f"/v1/files/{second['id']}")).status_code == 404
        await until(lambda: not place.folder.data(second["id"]).exists())


async def test_the_files_of_a_key_have_a_quota(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a: a max_stored_bytes=10\nb: b\n", encoding="utf-8")
    async with served(tmp_path / "files", api_keys_file=str(keys)) as place:
        place.client.headers["authorization"] = "Bearer a"
        first = await place.upload(b"12345678")
        refused = await place.upload(b"123")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "storage_quota_exceeded")
        place.client.headers["authorization"] = "Bearer b"
        assert (await place.upload(b"12345678901")).status_code == 200
        place.client.headers["authorization"] = "Bearer a"
        await place.client.delete(f"/v1/files/{first.json()['id']}")
        assert (await place.upload(b"123")).status_code == 200


@pytest.mark.parametrize("room_for", [0, 1], ids=["nothing", "the bytes but not the record"])
async def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room_for: int
) -> None:
    written = itertools.count()
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if next(written) >= room_for:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    async with served(tmp_path) as place:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            answered = await place.upload(b"{}")
        assert (answered.status_code, answered.json()["error"]["code"]) == (507, "storage_full")
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [record.exc_info for record in caplog.records if "No space left" in record.getMessage()] == [None]
        assert (await place.upload(b"{}")).status_code == 200


async def test_a_file_that_is_deleted_while_it_is_asked_for(tmp_path: Path) -> None:
    """Before it is opened there is none; afterwards its content is still sent."""
    async with served(tmp_path) as place:
        record = place.folder.add_file(io.BytesIO(b"content"), "in.jsonl", "batch", None, "")
        response = endpoints._OpenFileResponse(place.folder.data(record.id))
        place.folder.data(record.id).unlink()
        answered = await place.client.get(f"/v1/files/{record.id}/content")
        assert (answered.status_code, answered.json()["error"]["message"]) == (404, f"No such file: '{record.id}'.")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(response), base_url="http://test") as client:
            assert (await client.get("/")).content == b"content"


def test_what_a_crash_leaves_of_an_upload(tmp_path: Path) -> None:
    """It goes; not so what an upload still writes to, however slowly, or has just begun."""
    folder = Folder(tmp_path)
    folder.make()
    young, old = (tmp_path / "files" / f"file-{number}.part" for number in ("1" * 32, "2" * 32))
    young.touch()

    class Slow(io.BytesIO):
        """An upload whose server looks for what is left, long after its last byte."""

        def read(self, size: int | None = -1) -> bytes:
            for path in (tmp_path / "files").glob("*.part"):
                if path != young:
                    os.utime(path, (1, 1))
            folder.delete_expired()
            return super().read(size)

    old.touch()
    record = folder.add_file(Slow(b"content"), "in.jsonl", "batch", None, "")
    assert folder.data(record.id).read_bytes() == b"content"
    assert [path.name for path in (tmp_path / "files").glob("*.part")] == [young.name]


async def test_what_is_no_upload(tmp_path: Path) -> None:
    async with served(tmp_path, max_file_bytes=1000) as place:
        for fields, param in (
            ({"purpose": "vision"}, "purpose"),
            ({"what": "x"}, "what"),
            ({"expires_after[seconds]": "5", "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ):
            reply = await place.upload(b"x", **fields)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert (await place.upload(b"x" * 1001)).json()["error"]["param"] == "file"
        reply = await place.upload(b"x" * 100_000)
        assert (reply.status_code, "1000 bytes (max_file_bytes)" in reply.json()["error"]["message"]) == (413, True)
        form = "multipart/form-data"
        for content, kind in ((b"{}", "application/json"), (b"x", form), (b"x", f"{form}; boundary=y")):
            reply = await place.client.post("/v1/files", content=content, headers={"content-type": kind})
            assert reply.status_code == 400
        assert not list(tmp_path.glob("files/*"))


async def test_a_few_uploads_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_UPLOADS", 1)
    async with served(tmp_path) as place:
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
        refused = await place.upload(b"y")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        may_end.set()
        assert (await first).status_code == 200
        assert (await place.upload(b"y")).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"what": 1}, "what"),
    ],
)
async def test_refusals_of_batches(tmp_path: Path, body: dict[str, Any], param: str) -> None:
    async with served(tmp_path) as place:
        given = {**BATCH, "input_file_id": f"file-{ID}", **body}
        reply = await place.client.post("/v1/batches", json=given)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert (await place.client.get(f"/v1/batches/batch_{ID}")).status_code == 404


async def test_each_key_sees_its_own(tmp_path: Path) -> None:
    async with served(tmp_path / "b", api_key="main") as place:
        place.client.headers["authorization"] = "Bearer main"
        created = await place.create(request("a"))
        batch = await place.ended(created["id"])
        assert batch["request_counts"]["completed"] == 1
        record = place.folder.batch(created["id"])
        assert record is not None
        record.owner = "somebody else"
        place.folder.write_batch(record)
        assert (await place.client.get(f"/v1/batches/{created['id']}")).status_code == 404
        assert (await place.client.get("/v1/batches")).json()["data"] == []


async def test_off_by_name() -> None:
    transport = httpx.ASGITransport(app=application(Bench()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/v1/files", "/v1/batches"):
            reply = await client.get(path)
            assert (reply.status_code, "batches_dir" in reply.json()["error"]["message"]) == (400, True)
