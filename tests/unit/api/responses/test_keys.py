"""Stored responses of several API keys: each key sees its own."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.keys import watched_files
from tests.unit.api.responses.responses_support import PATH, Client, Place
from tests.unit.core_support import EOS, Bench, until


@pytest.fixture
async def client(tmp_path: Path) -> Client:
    """Of a server with the keys `a` and `b`."""
    keys = tmp_path / "keys"
    keys.write_text("a: a\nb: b\n", encoding="utf-8")
    return Client(Place(Bench(api_keys_file=str(keys))))


async def create(client: Client, key: str, **body: Any) -> str:
    """The id of a response that is stored."""
    before, stored = len(client.engine.requests), len(client.place.store)
    task = asyncio.ensure_future(client.send("POST", PATH, {"input": "hi", **body}, key=key))
    await until(lambda: len(client.engine.requests) > before or task.done())
    client.engine.deliver(before, "ok", "stop", stop_token_id=EOS)
    reply = await task
    assert reply.status == 200, reply.text
    await until(lambda: len(client.place.store) > stored)
    (found,) = set(re.findall('"id":"(resp_[^"]*)"', reply.text))
    return str(found)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("background", [False, True])
async def test_a_stored_response(client: Client, stream: bool, background: bool) -> None:
    response_id = await create(client, "a", stream=stream, background=background)
    for method, tail in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
        assert (await client.send(method, f"{PATH}/{response_id}{tail}", key="b")).status == 404
    found = await client.send("POST", PATH, {"input": "hi", "previous_response_id": response_id}, key="b")
    unknown = await client.send("POST", PATH, {"input": "hi", "previous_response_id": "resp_0"}, key="b")
    assert (found.status, found.error["code"]) == (400, "previous_response_not_found")
    # Nothing tells that there is one.
    assert found.text.replace(response_id, "resp_0") == unknown.text
    assert (await client.send("GET", f"{PATH}/{response_id}", key="a")).status == 200
    await create(client, "a", previous_response_id=response_id)
    assert (await client.send("DELETE", f"{PATH}/{response_id}", key="a")).status == 200


async def test_a_response_that_is_being_made(client: Client) -> None:
    begun = await client.send("POST", PATH, {"input": "hi", "background": True}, key="a")
    path = f"{PATH}/{begun.json()['id']}"
    for method, tail in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
        assert (await client.send(method, path + tail, key="b")).status == 404
    assert (await client.send("GET", path, key="a")).json()["status"] == "queued"
    assert (await client.send("POST", f"{path}/cancel", key="a")).json()["status"] == "cancelled"


async def test_items_whose_ids_clients_choose(client: Client) -> None:
    """One key's item neither is nor hides another's of the same id."""
    item = {"type": "message", "role": "user", "id": "msg_mine"}
    reference = {"input": [{"type": "item_reference", "id": "msg_mine"}]}
    await create(client, "a", input=[{**item, "content": "of a"}])
    refused = await client.send("POST", PATH, reference, key="b")
    assert (refused.status, refused.error["param"]) == (400, "input[0].id")
    await create(client, "b", input=[{**item, "content": "of b"}])
    response_id = await create(client, "a", **reference)
    listed = await client.send("GET", f"{PATH}/{response_id}/input_items", key="a")
    assert [part["content"][0]["text"] for part in listed.json()["data"]] == ["of a"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_response_of_a_removed_key_fails(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)
    task = asyncio.ensure_future(
        client.send("POST", PATH, {"input": "hi", "background": True, "stream": stream}, key="a")
    )
    await until(lambda: bool(client.engine.requests))
    (tmp_path / "keys").write_text("b: b\n", encoding="utf-8")
    for _ in range(2):
        client.place.bench.service.removed_keys.look()
    assert len(client.engine.cancelled) == 1
    await until(lambda: len(client.place.store) == 1)
    (tmp_path / "keys").write_text("a: a\nb: b\n", encoding="utf-8")
    (response_id,) = set(re.findall('"id":"(resp_[^"]*)"', (await task).text))
    found = (await client.send("GET", f"{PATH}/{response_id}", key="a")).json()
    assert found["status"] == "failed"
