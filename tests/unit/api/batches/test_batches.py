"""Batches over the whole application."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from openai_bls.api.batches import lines, validation
from openai_bls.api.batches.records import BatchRecord
from tests.unit.api.batches.support import BATCH, ID, jsonl, request, requests, served
from tests.unit.api.http_support import application
from tests.unit.core_support import Bench, until


async def test_a_batch(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        texts = [request("a"), request("b", what=1), b"", request("c", model="gpt")]
        created = await place.create(*texts, metadata={"k": "v"})
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
    ("texts", "code", "line"),
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
async def test_bad_files_fail_as_a_whole(tmp_path: Path, texts: list[Any], code: str, line: int | None) -> None:
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(*texts))["id"])
        assert batch["status"] == "failed"
        assert (batch["errors"]["data"][0]["code"], batch["errors"]["data"][0]["line"]) == (code, line)
        assert not place.sent


@pytest.mark.parametrize(
    ("texts", "codes"),
    [
        ([b"{"] * 200, ["invalid_json_line"] * validation.MAX_ERRORS),
        (requests("r", 5), ["too_many_requests"]),
    ],
    ids=["faults", "requests"],
)
async def test_a_bad_file_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[Any], codes: list[str]
) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 3)
    async with served(tmp_path) as place:
        batch = await place.ended((await place.create(*texts))["id"])
        assert [error["code"] for error in batch["errors"]["data"]] == codes


async def test_an_error_of_the_server_ends_the_batch_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = lines.result

    def failing(line: lines.Line, *response: Any) -> bytes:
        if line.custom_id == "bad1":
            raise ValueError("a fault of ours")
        return result(line, *response)

    monkeypatch.setattr(lines, "result", failing)
    async with served(tmp_path, held=True) as place:
        bad, good = [await place.create(*requests(name, 4)) for name in ("bad", "good")]
        place.held = False
        failed = await place.ended(bad["id"])
        assert (failed["status"], failed["errors"]["data"][0]["code"]) == ("failed", "server_error")
        assert (await place.ended(good["id"]))["request_counts"]["completed"] == 4


async def test_a_batch_without_a_model_names_none(tmp_path: Path) -> None:
    async with served(tmp_path) as place:
        assert (await place.ended((await place.create(request("a")))["id"]))["model"] is None
        assert (await place.ended((await place.create(request("a", model="tiny")))["id"]))["model"] == "tiny"


async def test_clients_need_certificates_and_batches_do_not(tmp_path: Path) -> None:
    async with served(tmp_path, ssl_ca_certs="ca.pem") as place:
        uploaded = place.folder.add_file(io.BytesIO(jsonl(request("a"))), "in.jsonl", "batch", None, "")
        record = BatchRecord(f"batch_{ID}", "/v1/completions", uploaded.id, 1, 2**40)
        place.folder.write_batch(record)
        await until(lambda: (found := place.folder.batch(record.id)) is not None and found.ended_at)
        found = place.record(record.id)
        assert (found.done.count, found.failed.count) == (1, 0)


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
        place.use_key("main")
        own = await place.ended((await place.create(request("a")))["id"])
        # A record of its own: what a list knows of an ended batch is not read again.
        place.folder.write_batch(
            msgspec.structs.replace(place.record(own["id"]), id=f"batch_{ID}", owner="somebody else")
        )
        assert (await place.client.get(f"/v1/batches/batch_{ID}")).status_code == 404
        assert [batch["id"] for batch in (await place.client.get("/v1/batches")).json()["data"]] == [own["id"]]


async def test_off_by_name() -> None:
    transport = httpx.ASGITransport(app=application(Bench()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/v1/files", "/v1/batches"):
            reply = await client.get(path)
            assert (reply.status_code, "batches_dir" in reply.json()["error"]["message"]) == (400, True)
