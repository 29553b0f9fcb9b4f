"""Triton's paths on /v1's port, with a front end that answers as it is told to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from openai_bls.transport.triton_http import FrontEndAnswer, TritonHttp
from tests.paths import ROOT
from tests.unit.api.http_support import application, asked
from tests.unit.core_support import WAIT_S, Bench, ask

GUIDE = (ROOT / "docs" / "guides" / "triton.md").read_text(encoding="utf-8")
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_openai_bls_takes_bodies_of_v1(path: str) -> None:
    """Objects, streamed or not, under the names of the metrics of /v1."""
    address = f"/v2/models/openai_bls/{path}"
    for body, kind in ((CHAT, "chat.completion"), ({"prompt": "x"}, "text_completion")):
        bench = Bench()
        ended: list[str] = []
        bench.service.on_end = lambda record, ended=ended: ended.append(record.endpoint)  # type: ignore[misc]
        answered = asked(bench, address, body, lambda bench=bench: bench.engine.deliver(0, "y", "stop"))  # type: ignore[misc]
        assert answered.json()["object"] == kind
        assert ended == ["chat.completions" if kind == "chat.completion" else "completions"]
        assert answered.headers["openai-processing-ms"].isdecimal()
    bench = Bench()
    streamed = asked(bench, address, {**CHAT, "stream": True}, lambda: bench.engine.deliver(0, "y", "stop"))
    assert streamed.body.decode().rstrip().endswith("data: [DONE]")
    assert "chat.completion.chunk" in streamed.body.decode()


@asynccontextmanager
async def front_end(answer: bytes, *, control: str = "") -> AsyncIterator[tuple[TritonHttp, list[bytes]]]:
    """A front end that answers with these bytes, and what it was sent."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        got.append(head + await reader.readexactly(length))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield TritonHttp(host, port, {"control": control} if control else {}), got


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_text_goes_on_with_its_key() -> None:
    bench = Bench(api_key="k")
    async with front_end(CHUNKED + b"5\r\ndata:\r\n2\r\n 1\r\n0\r\n\r\n") as (bench.service.front_end, got):
        path = "/v2/models/ensemble/generate_stream"
        body = {"text_input": "x", "max_tokens": 5}
        assert (await ask(application(bench), "POST", path, body)).status == 401
        answered = await ask(application(bench), "POST", path, body, (("authorization", "Bearer k"),))
    assert (answered.status, answered.body) == (200, b"data: 1")
    assert answered.headers["content-type"].startswith("text/event-stream")
    (sent,) = got
    assert sent.startswith(b"POST /v2/models/ensemble/generate_stream HTTP/1.1\r\n")
    assert msgspec.json.decode(sent.partition(b"\r\n\r\n")[2]) == {**body, "authorization": "Bearer k"}


async def test_the_index_is_asked_for_with_the_servers_own_key() -> None:
    bench = Bench()
    models = b'[{"name":"ensemble","version":"1","state":"READY"}]'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(models), models)
    async with front_end(answer, control="secret") as (bench.service.front_end, got):
        answered = await ask(application(bench), "POST", "/v2/repository/index")
    assert answered.json() == [{"name": "ensemble", "version": "1", "state": "READY"}]
    assert b"control: secret\r\n" in got[0]


async def test_a_client_that_leaves_before_the_answer_begins_leaves_no_connection_behind() -> None:
    """However long what it would have read is kept: Python 3.10 does not close the connection of a lost writer."""
    bench = Bench()
    hung_up = asyncio.Event()
    kept: list[FrontEndAnswer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await reader.read(-1)
        hung_up.set()
        writer.close()

    class Keeping(TritonHttp):
        async def index(self, body: bytes) -> FrontEndAnswer:
            kept.append(await super().index(body))
            return kept[-1]

    async def send(message: Any) -> None:
        raise OSError

    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    scope = {"type": "http", "method": "POST", "path": "/v2/repository/index", "root_path": "", "query_string": b""}
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        bench.service.front_end = Keeping(host, port, {})
        with pytest.raises(OSError):  # noqa: PT011
            await application(bench)({**scope, "headers": []}, receive, send)
        await asyncio.wait_for(hung_up.wait(), WAIT_S)
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("sentence", "status"),
    [
        ("Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer", 400),
        *((words, 400) for words in re.findall(r"`(attempt to access JSON [^`]+)`", GUIDE)),
        ("failed to parse the request JSON buffer: Number too big to be stored in double. at 17", 400),
        ("the model has failed", 500),
    ],
)
async def test_a_value_that_tritons_port_cannot_read_is_a_400(sentence: str, status: int) -> None:
    bench = Bench()
    said = msgspec.json.encode({"error": sentence})
    answer = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
    async with front_end(answer) as (bench.service.front_end, _):
        body = {"text_input": "x", "max_tokens": "x"}
        for path in ("/v2/models/ensemble/generate", "/v2/repository/index"):
            answered = await ask(application(bench), "POST", path, body)
            assert (answered.status, answered.body) == (status, said)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 ?\r\n\r\n"])
async def test_a_front_end_that_does_not_answer_is_a_503(answer: bytes) -> None:
    bench = Bench()
    async with front_end(answer) as (bench.service.front_end, _):
        answered = await ask(application(bench), "POST", "/v2/models/tensorrt_llm_bls/generate", {"text_input": "x"})
    assert answered.status == 503
    bench.service.front_end = None
    assert (await ask(application(bench), "POST", "/v2/repository/index")).status == 503
