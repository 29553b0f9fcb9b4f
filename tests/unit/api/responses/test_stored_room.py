"""Responses that the store has no room for: refused before anything is generated, or told at the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openai_bls.api.responses.kept import kept_items
from openai_bls.api.responses.store import ResponseStore
from tests.unit.api.responses.responses_support import PATH, Client, Place
from tests.unit.core_support import EOS, until

ROOM = 12_000


def small() -> Place:
    return Place(store=ResponseStore(max_bytes=ROOM))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("param", ["store", "background"])
def test_what_is_asked_to_be_kept_and_cannot_be_is_refused(param: str, stream: bool) -> None:
    place = small()
    reply = place.ask("POST", PATH, {"input": "x" * ROOM, param: True, "stream": stream})
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, "storage_quota_exceeded")
    assert not place.bench.engine.requests


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_be_kept_says_so(stream: bool) -> None:
    place = small()
    first = place.whole({"input": "hi"})
    assert first["store"] is True
    body, pieces = {"input": "hi", "previous_response_id": first["id"]}, ["y" * ROOM]
    last = place.streamed(body, pieces)[-1]["response"] if stream else place.whole(body, pieces)
    assert (last["store"], last["output"][0]["content"][0]["text"]) == (False, pieces[0])
    assert place.ask("GET", f"{PATH}/{last['id']}").status == 404
    # Nothing else has gone.
    assert place.ask("GET", f"{PATH}/{first['id']}").json() == first


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_response_that_cannot_be_kept_has_failed(stream: bool) -> None:
    client = Client(small())
    task = asyncio.ensure_future(client.send("POST", PATH, {"input": "hi", "background": True, "stream": stream}))
    await until(lambda: bool(client.engine.requests))
    client.engine.deliver(0, "y" * ROOM, "stop", stop_token_id=EOS)
    reply = await task
    found: dict[str, Any] = reply.events[-1]["response"] if stream else reply.json()
    await until(lambda: len(client.place.store) == 1)
    later = await client.get(found["id"])
    assert (later["status"], later["output"]) == ("failed", [])
    assert later["error"]["code"] == "server_error"
    if stream:
        # Who followed it has it all.
        assert found["output"][0]["content"][0]["text"] == "y" * ROOM


async def test_polling_does_not_read_the_input_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(items: Any) -> Any:
        counts.append(len(items))
        return kept_items(items)

    monkeypatch.setattr("openai_bls.api.responses.store.kept_items", counted)
    client = Client(Place())
    begun = await client.begin(input=[{"role": "user", "content": "x"}] * 50)
    for _ in range(5):
        await client.get(begun["id"])
    client.engine.deliver(0, "ok", "stop", stop_token_id=EOS)
    await until(lambda: len(client.place.store) == 1)
    assert counts == [50]
