"""Streams over real sockets: to clients that read, read slowly, or go away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from openai_bls.api.http.listening.listener import SharedListener
from openai_bls.api.http.uvicorn_server import HttpServer
from tests.unit.api.connections import CHAT, STREAM_TEXT, Client, connected, streamed_to_a_slow_reader
from tests.unit.api.http_support import application
from tests.unit.core_support import EOS, WAIT_S, Bench, free_port, until

STREAM = {**CHAT, "stream": True}


async def test_chunks_arrive_as_they_are_made() -> None:
    async with connected() as (bench, _, client):
        client.post(STREAM_TEXT, "Connection: close")
        await until(lambda: bench.engine.requests)
        for text in (b"a", b"b", b"c"):
            bench.engine.deliver(0, text.decode())
            assert await client.reader.readuntil(b'"%b"' % text)
        bench.engine.deliver(0, "", "stop", stop_token_id=EOS)
        assert b"data: [DONE]\n\n" in await client.reader.read()


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_client_that_goes_away_before_the_first_token(body: dict[str, Any]) -> None:
    async with connected() as (bench, _, client):
        client.post(json.dumps({**body, "n": 2}).encode())
        await until(lambda: len(bench.engine.requests) == 2)
        client.writer.close()
        await until(lambda: len(bench.engine.cancelled) == 2)


async def test_a_client_that_goes_away_in_the_middle() -> None:
    async with connected(2) as (bench, _, first, second):
        for at, client in enumerate((first, second)):
            client.post(STREAM_TEXT)
            await until(lambda: len(bench.engine.requests) > at)  # noqa: B023
            bench.engine.deliver(at, "abc")
            await client.reader.readuntil(b"abc")
        first.writer.close()
        await until(lambda: bench.engine.cancelled)
        assert bench.engine.cancelled == [bench.engine.requests[0].request_id]
        bench.engine.deliver(1, "x", "length")
        await second.reader.readuntil(b"[DONE]")


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_client_that_goes_away_while_its_prompt_is_prepared(body: dict[str, Any]) -> None:
    async with connected() as (bench, _, client):
        hold = bench.prompts.hold = asyncio.get_running_loop().create_future()
        client.post(json.dumps(body).encode())
        await until(lambda: bench.prompts.requests)
        client.writer.close()
        hold.set_result(None)
        await until(lambda: bench.service.in_progress == 0)
        assert bench.engine.listeners == {}


async def test_a_slow_reader_gets_everything_and_holds_nobody_up() -> None:
    async with connected(2) as (bench, _, slow, quick):
        # 8.4 MB, since JSON writes each of these characters in six bytes.
        await streamed_to_a_slow_reader(bench, slow, quick, [chr(14 + at % 18) * 1000 for at in range(1400)])


async def test_silence_in_the_middle_is_kept_alive() -> None:
    async with connected(keep_alive_interval_s=0.01) as (bench, _, client):
        client.post(STREAM_TEXT, "Connection: close")
        await until(lambda: bench.engine.requests)
        bench.engine.deliver(0, "a")
        # In chunks of their own, and without the blank line that would end an event.
        for text in (b'"a"', b"\r\n: keep-alive\n\r\n", b"\r\n: keep-alive\n\r\n"):
            await client.reader.readuntil(text)
        bench.engine.deliver(0, "b", "length")
        assert b"data: [DONE]\n\n" in await client.reader.read()


async def test_streams_one_after_another_on_one_connection() -> None:
    """What one stream wrote to the connection itself leaves it in order for the next."""
    async with connected() as (bench, _, client):
        # The first two at once: the second waits for the end of the first.
        client.post(STREAM_TEXT)
        client.post(STREAM_TEXT)
        for at in range(3):
            if at == 2:
                client.post(STREAM_TEXT)
            await until(lambda: len(bench.engine.requests) > at)  # noqa: B023
            assert len(bench.engine.requests) == at + 1
            bench.engine.deliver(at, f"first{at}")
            await client.reader.readuntil(b"first%d" % at)
            bench.engine.deliver(at, f"last{at}", "length")
            rest = await client.reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"last%d" % at in rest
            assert rest.count(b"[DONE]") == 1


async def test_stopping_lets_a_running_stream_end() -> None:
    bench = Bench()
    port = free_port()
    server = HttpServer(application(bench), bench.service, SharedListener("127.0.0.1", port, owner=1))
    server.start()
    client = await Client.connect(port)
    client.post(STREAM_TEXT)
    await until(lambda: bench.engine.requests)
    bench.engine.deliver(0, "a")
    await client.reader.readuntil(b'"a"')
    stopping = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0)
    bench.engine.deliver(0, "b", "length")
    assert b"data: [DONE]\n\n" in await client.reader.read()
    client.writer.close()
    await asyncio.wait_for(stopping, WAIT_S)
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(port)


@pytest.mark.parametrize("keep_alive", ["", "Connection: keep-alive\r\n"])
@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_http_1_0_knows_no_chunks(body: dict[str, Any], keep_alive: str) -> None:
    text = json.dumps(body).encode()
    async with connected(keep_alive_interval_s=0.01) as (bench, _, client):
        lines = f"POST /v1/chat/completions HTTP/1.0\r\n{keep_alive}Content-Length: {len(text)}\r\n\r\n"
        client.send(lines.encode() + text)
        await until(lambda: bench.engine.requests)
        bench.engine.deliver(0, "a")
        if body is STREAM:
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"transfer-encoding" not in head.lower()
            # In a silence as well.
            await client.reader.readuntil(b": keep-alive\n")
        bench.engine.deliver(0, "b", "length")
        found = await client.reader.read()
    if body is STREAM:
        assert b"\r\n" not in found
        assert found.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(found.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == "ab"
