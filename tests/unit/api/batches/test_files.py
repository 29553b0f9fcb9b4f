"""Files over the whole application."""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import FileDeleted, FileObject
from python_multipart.multipart import BaseParser
from starlette.responses import FileResponse
from starlette.types import Message

from openai_bls.api.batches import files
from openai_bls.api.batches.files import OpenFileResponse
from openai_bls.api.batches.folder import Folder
from tests.unit.api.batches.support import ID, served
from tests.unit.core_support import WAIT_S, until


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
        (tmp_path / "record").write_bytes(msgspec.json.encode(record))
        (tmp_path / "record").replace(tmp_path / "files" / f"{record.id}.json")
        assert (await place.client.get(f"/v1/files/{second['id']}")).status_code == 404
        await until(lambda: not place.folder.data(second["id"]).exists())


async def test_the_files_of_a_key_have_a_quota(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a: a max_stored_bytes=10\nb: b\n", encoding="utf-8")
    async with served(tmp_path / "files", api_keys_file=str(keys)) as place:
        place.use_key("a")
        first = await place.upload(b"12345678")
        refused = await place.upload(b"123")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "storage_quota_exceeded")
        place.use_key("b")
        assert (await place.upload(b"12345678901")).status_code == 200
        place.use_key("a")
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
        response = files.OpenFileResponse(place.folder.data(record.id), "")
        place.folder.data(record.id).unlink()
        answered = await place.client.get(f"/v1/files/{record.id}/content")
        assert answered.status_code == 404
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


@pytest.mark.parametrize(
    ("content", "fields", "status", "param"),
    [
        (b"x", {"purpose": "fine-tune"}, 400, "purpose"),
        (b"x", {"what": "x"}, 400, "what"),
        (
            b"x",
            {"expires_after[seconds]": "5", "expires_after[anchor]": "created_at"},
            400,
            "expires_after.seconds",
        ),
        (b"x" * 1001, {}, 400, "file"),
        (b"x" * 100_000, {}, 413, None),
    ],
    ids=["purpose", "unknown", "expiry", "too large", "much too large"],
)
async def test_uploads_that_are_refused(
    tmp_path: Path, content: bytes, fields: dict[str, str], status: int, param: str | None
) -> None:
    async with served(tmp_path, max_file_bytes=1000) as place:
        reply = await place.upload(content, **fields)
        assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
        assert not list(tmp_path.glob("files/*"))


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=y"])
async def test_what_is_no_form(tmp_path: Path, kind: str) -> None:
    async with served(tmp_path) as place:
        reply = await place.client.post("/v1/files", content=b"x", headers={"content-type": kind})
        assert reply.status_code == 400
        assert not list(tmp_path.glob("files/*"))


FILE = b'--y\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
PART = b"--y\r\nContent-Disposition: form-data; name=%d\r\n\r\nx\r\n"


@pytest.mark.parametrize(
    "content",
    [
        b"".join(PART % number for number in range(5000)),
        b"--y\r\n\r\n\r\n" * 20_000,
        b"--y\r\n" + b"a: b\r\n" * 50_000,
        b"--y\r\na: " + b"b" * 200_000,
        b"--y\r\na" + b"b" * 200_000,
        b"\r\n" * 100_000,
        FILE + b"\r\n--" * 50_000,
        FILE + b"\r\n--y-" * 50_000,
        FILE + b"\r\n--y--" + b"\r\n--y\r\n" * 20_000,
    ],
    ids=["parts", "empty parts", "headers", "a value", "a name", "empty lines", "dashes", "ends", "what follows"],
)
async def test_pieces_of_a_form_are_few(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its bytes are: parts, their headers, and what looks like the beginning of one."""
    pieces = 0
    call = BaseParser.callback

    def counted(parser: BaseParser, *args: Any) -> None:
        nonlocal pieces
        pieces += 1
        call(parser, *args)

    monkeypatch.setattr(BaseParser, "callback", counted)
    async with served(tmp_path) as place:
        headers = {"content-type": "multipart/form-data; boundary=y"}
        reply = await place.client.post("/v1/files", content=content, headers=headers)
        assert reply.status_code == 400
    # A part has seven callbacks, and content one for each piece that is received.
    assert pieces < 17 * 8 + 100


async def test_a_few_uploads_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_UPLOADS", 1)
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


@given(
    st.sampled_from(["GET", "HEAD"]),
    st.none() | st.from_regex(r"bytes=([0-9]{0,2}-[0-9]{0,2}|[a-z]?)", fullmatch=True),
    st.sampled_from([None, "own", "other"]),
    st.integers(0, 40),
    st.integers(1, 7),
)
def test_content_is_what_a_file_response_sends(
    method: str, asked: str | None, unless: str | None, size: int, chunk: int
) -> None:
    async def run(path: Path) -> None:
        plain = FileResponse(path, media_type="application/octet-stream", stat_result=path.stat())
        own = OpenFileResponse(path, "a")
        own.chunk_size = chunk
        headers = {} if asked is None else {"range": asked}
        if unless is not None:
            headers["if-range"] = plain.headers["etag"] if unless == "own" else '"other"'
        found = []
        for response in (plain, own):
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=response), base_url="http://t") as client:
                reply = await client.request(method, "/", headers=headers)
            found.append((reply.status_code, sorted(reply.headers.multi_items()), reply.content))
        assert found[0] == found[1]
        assert own._file.closed

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "content")
        path.write_bytes(bytes(range(size)))
        asyncio.run(run(path))


async def test_several_ranges_are_answered_with_the_whole(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"abcdef")
    own = OpenFileResponse(tmp_path / "content", "a")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=own), base_url="http://t") as client:
        reply = await client.get("/", headers={"range": "bytes=0-1,3-4"})
    assert (reply.status_code, reply.content) == (200, b"abcdef")


async def test_a_file_is_closed_when_the_thread_has_read_that_a_client_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "content").write_bytes(b"abcdef")
    own = OpenFileResponse(tmp_path / "content", "a")
    reads, may_go, pread = threading.Event(), threading.Event(), os.pread

    def slow(*arguments: int) -> bytes:
        reads.set()
        assert may_go.wait(WAIT_S)
        return pread(*arguments)

    async def receive() -> Message:
        await until(reads.is_set)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        assert message["type"] == "http.response.start"

    monkeypatch.setattr(os, "pread", slow)
    scope = {"type": "http", "method": "GET", "headers": [], "asgi": {"spec_version": "2.3"}}
    await own(scope, receive, send)
    assert not own._file.closed
    may_go.set()
    await until(lambda: own._file.closed)
