"""Answers that their clients do not read: their memory is bounded, by key, and comes back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.unit.api.connections import STREAM_TEXT, Client, connected
from tests.unit.core_support import until

# More than all buffers between server and client hold.
SIZE = 12 << 20
ROOM = 30 << 20
ITEM = {"type": "message", "role": "user", "content": "x" * SIZE}


def ask(client: Client, method: str, path: str, body: bytes = b"", key: str = "none") -> None:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", f"Authorization: Bearer {key}"]
    client.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


async def stored(client: Client, key: str = "none") -> str:
    """Path of what has a large answer."""
    ask(client, "POST", "/v1/conversations", json.dumps({"items": [ITEM]}).encode(), key)
    status, _, answer = await client.answer()
    assert status == 200
    return f"/v1/conversations/{answer['id']}/items"


async def begun(client: Client) -> bool:
    """Whether the answer is on its way, of which no more than the head is read; it is told so if not."""
    head = await client.reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 200 "):
        return True
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in head
    await client.reader.readuntil(b"}}")
    return False


async def test_large_answers_that_nobody_reads_have_bounded_room() -> None:
    async with connected(5, max_body_bytes_in_flight=ROOM) as (_, _, owner, *clients):
        path = await stored(owner)
        for client in clients[:2]:
            ask(client, "GET", path)
            assert await begun(client)
        ask(clients[2], "GET", path)
        assert not await begun(clients[2])
        # A small one, as ever.
        ask(clients[2], "GET", path.removesuffix("/items"))
        assert await clients[2].status() == 200
        # Room is there again once one is read, or its client has gone.
        await clients[0].reader.readexactly(SIZE)
        clients[1].writer.transport.abort()
        for client in clients[2:]:
            ask(client, "GET", path)
            assert await begun(client)


async def test_those_of_a_key_leave_room_for_another_s(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: alice\nbob: bob\n")
    keys = str(tmp_path / "keys")
    async with connected(3, max_body_bytes_in_flight=40 << 20, api_keys_file=keys) as (_, _, owner, *clients):
        paths = {key: await stored(owner, key) for key in ("alice", "bob")}
        for client, wanted in zip(clients, (True, False), strict=True):
            ask(client, "GET", paths["alice"], key="alice")
            assert await begun(client) == wanted
        ask(clients[1], "GET", paths["bob"], key="bob")
        assert await begun(clients[1])


async def test_a_stream_that_nobody_reads_is_cut_off_where_there_is_no_more_room() -> None:
    async with connected(2, max_body_bytes_in_flight=1 << 17) as (bench, _, slow, quick):
        slow.post(STREAM_TEXT)
        await until(lambda: bench.engine.requests)
        for _ in range(500):
            for _ in range(100):
                bench.engine.deliver(0, "x")
            await asyncio.sleep(0.002)
            if bench.engine.cancelled:
                break
        await until(lambda: bench.engine.cancelled == [bench.engine.requests[0].request_id])
        # What it had is free again.
        path = await stored_small(quick)
        ask(quick, "GET", path)
        assert await begun(quick)


async def stored_small(client: Client) -> str:
    """Path of an answer that takes nearly all of the room of the last test."""
    item = {**ITEM, "content": "x" * 120_000}
    ask(client, "POST", "/v1/conversations", json.dumps({"items": [item]}).encode())
    return f"/v1/conversations/{(await client.answer())[2]['id']}/items"
