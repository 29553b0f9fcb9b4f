"""Stored responses of several API keys: each key sees its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.http_support import until
from tests.unit.api.responses.responses_support import Place
from tests.unit.core_support import EOS, WAIT_S, Answered, Bench, ask

PATH = "/v1/responses"


class Client:
    """Clients of one server with the keys `a` and `b`; the engine answers at once."""

    def __init__(self, folder: Path) -> None:
        keys = folder / "keys"
        keys.write_text("a: a\nb: b\n", encoding="utf-8")
        place = Place(Bench(api_keys_file=str(keys)))
        self.engine = place.bench.engine
        self.store = place.store
        self._app = place.app()

    async def send(self, key: str, method: str, path: str, body: dict[str, Any] | None = None) -> Answered:
        return await asyncio.wait_for(
            ask(self._app, method, path, body or b"", [("authorization", f"Bearer {key}")]), WAIT_S
        )

    async def create(self, key: str, **body: Any) -> str:
        """The id of a response that is stored."""
        before, stored = len(self.engine.requests), len(self.store)
        task = asyncio.ensure_future(self.send(key, "POST", PATH, {"input": "hi", **body}))
        await until(lambda: len(self.engine.requests) > before or task.done())
        self.engine.deliver(before, "ok", "stop", stop_token_id=EOS)
        answered = await task
        assert answered.status == 200, answered.body
        await until(lambda: len(self.store) > stored)
        return answered.body.partition(b'"id":"')[2].partition(b'"')[0].decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("background", [False, True])
async def test_a_stored_response(tmp_path: Path, stream: bool, background: bool) -> None:
    client = Client(tmp_path)
    response_id = await client.create("a", stream=stream, background=background)
    for method, tail in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
        assert (await client.send("b", method, f"{PATH}/{response_id}{tail}")).status == 404
    found = await client.send("b", "POST", PATH, {"input": "hi", "previous_response_id": response_id})
    unknown = await client.send("b", "POST", PATH, {"input": "hi", "previous_response_id": "resp_0"})
    assert (found.status, found.json()["error"]["code"]) == (400, "previous_response_not_found")
    # Nothing tells that there is one.
    assert found.body.replace(response_id.encode(), b"resp_0") == unknown.body
    assert (await client.send("a", "GET", f"{PATH}/{response_id}")).status == 200
    await client.create("a", previous_response_id=response_id)
    assert (await client.send("a", "DELETE", f"{PATH}/{response_id}")).status == 200


async def test_a_response_that_is_being_made(tmp_path: Path) -> None:
    client = Client(tmp_path)
    begun = await client.send("a", "POST", PATH, {"input": "hi", "background": True})
    path = f"{PATH}/{begun.json()['id']}"
    for method, tail in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
        assert (await client.send("b", method, path + tail)).status == 404
    assert (await client.send("a", "GET", path)).json()["status"] == "queued"
    assert (await client.send("a", "POST", f"{path}/cancel")).json()["status"] == "cancelled"


async def test_items_whose_ids_clients_choose(tmp_path: Path) -> None:
    """One key's item neither is nor hides another's of the same id."""
    client = Client(tmp_path)
    item = {"type": "message", "role": "user", "id": "msg_mine"}
    reference = {"input": [{"type": "item_reference", "id": "msg_mine"}]}
    await client.create("a", input=[{**item, "content": "of a"}])
    refused = await client.send("b", "POST", PATH, reference)
    assert (refused.status, "not found" in refused.json()["error"]["message"]) == (400, True)
    await client.create("b", input=[{**item, "content": "of b"}])
    response_id = await client.create("a", **reference)
    listed = await client.send("a", "GET", f"{PATH}/{response_id}/input_items")
    assert [part["content"][0]["text"] for part in listed.json()["data"]] == ["of a"]
