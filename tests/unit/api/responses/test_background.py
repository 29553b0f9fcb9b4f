"""Background responses: their states, their streams that are followed again, and their ends."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from openai.types.responses import Response

from openai_bls.api.chat.validation import parse_object
from openai_bls.api.responses.recording import Recording
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.lifecycle.context import RequestContext
from tests.unit.api.guard_support import as_response
from tests.unit.api.http_support import Leaving
from tests.unit.api.responses.responses_support import PATH, THINKS_AND_CALLS, Client, Place, Reply, checked
from tests.unit.core_support import EOS, Bench, FakeSink, until

BACKGROUND = {"input": "hi", "background": True}


async def test_a_background_response_is_polled() -> None:
    client = Client(Place())
    first = await client.begin(metadata={"a": "b"})
    assert (first["status"], first["background"], first["output"]) == ("queued", True, [])
    assert await client.get(first["id"]) == first
    listed = await client.send("GET", f"{PATH}/{first['id']}/input_items")
    assert listed.json()["data"][0]["content"][0]["text"] == "hi"
    client.engine.deliver(0, "he")
    assert (await client.get(first["id"]))["status"] == "in_progress"
    client.engine.deliver(0, "llo", "stop", stop_token_id=EOS)
    await until(lambda: len(client.place.store) == 1)
    done = await client.get(first["id"])
    assert (done["status"], done["metadata"]) == ("completed", {"a": "b"})
    assert checked(Response, done).output_text == "hello"
    # One that has ended stays as it is.
    assert (await client.send("POST", f"{PATH}/{first['id']}/cancel")).json() == done
    follow = await client.send("GET", f"{PATH}/{first['id']}", query="stream=true")
    assert (follow.status, follow.error["param"]) == (400, "stream")
    assert client.place.bench.service.in_progress == 0


async def test_refusals_come_at_once() -> None:
    client = Client(Place())
    for stream in (False, True):
        for body, status in (({"model": "gpt"}, 404), ({"max_output_tokens": -1}, 400)):
            reply = await client.send("POST", PATH, {**BACKGROUND, "stream": stream, **body})
            assert reply.status == status
    assert not client.engine.requests


def id_in(text: str) -> str:
    (found,) = set(re.findall('"id":"(resp_[^"]*)"', text))
    return str(found)


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling(stream: bool) -> None:
    client = Client(Place())
    begun = Leaving(client.app, PATH, {**BACKGROUND, "stream": stream})
    await until(lambda: b'"queued"' in begun.sent)
    client.engine.deliver(0, "half")
    path = f"{PATH}/{id_in(begun.sent.decode())}/cancel"
    reply = await client.send("POST", path)
    response = reply.json()
    checked(Response, response)
    assert (reply.status, response["status"], response["output"][0]["status"]) == (200, "cancelled", "incomplete")
    assert response["output"][0]["content"][0]["text"] == "half"
    assert client.engine.cancelled == [client.engine.requests[0].request_id]
    assert await client.get(response["id"]) == response
    assert (await client.send("POST", path)).json() == response
    if stream:
        await until(lambda: b'"code":"response_cancelled"' in begun.sent)
        assert Reply(200, {}, begun.sent).events[-1]["type"] == "error"
    await begun.leave()
    assert client.place.bench.service.in_progress == 0


async def test_a_deleted_one_is_cancelled() -> None:
    client = Client(Place())
    first = await client.begin()
    assert (await client.send("DELETE", f"{PATH}/{first['id']}")).json()["deleted"] is True
    assert client.engine.cancelled == [client.engine.requests[0].request_id]
    assert (await client.send("GET", f"{PATH}/{first['id']}")).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_are_found_later(stream: bool) -> None:
    client = Client(Place())
    task = asyncio.ensure_future(client.send("POST", PATH, {**BACKGROUND, "stream": stream}))
    await until(lambda: client.engine.requests)
    await asyncio.sleep(0)
    client.engine.deliver(0, "ha", "error", error="The engine failed.")
    await until(lambda: len(client.place.store) == 1)
    reply = await task
    response_id = reply.events[0]["response"]["id"] if stream else reply.json()["id"]
    found = await client.get(response_id)
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    if stream:
        assert [event["type"] for event in reply.events[-2:]] == ["error", "response.failed"]


@pytest.mark.parametrize("changed", [{"x": 1}, {"id": "resp_other", "output": []}])
async def test_what_a_guard_makes_something_else_of_is_found_as_failed(changed: dict[str, Any]) -> None:
    async def guard(inputs: Any) -> Any:
        return as_response({"answer": changed})

    client = Client(Place(Bench(guard_after="watch")))
    client.place.bench.model_calls.models["watch"] = guard
    first = await client.begin()
    client.engine.deliver(0, "ha", "stop")
    await until(lambda: len(client.place.store) == 1)
    found = await client.get(first["id"])
    assert (found["status"], "guard" in found["error"]["message"]) == ("failed", True)


async def test_a_stream_goes_on_without_its_client_and_is_followed_again() -> None:
    client = Client(Place())
    first = Leaving(client.app, PATH, {**BACKGROUND, "stream": True})
    await until(lambda: client.engine.requests)
    client.engine.deliver(0, "one ")
    await until(lambda: b"one " in first.sent)
    response_id = id_in(first.sent.decode())
    await first.leave()
    assert client.engine.cancelled == []
    second = Leaving(client.app, f"{PATH}/{response_id}", {}, method="GET", query="stream=true&starting_after=1")
    await until(lambda: b"one " in second.sent)
    client.engine.deliver(0, "two", "stop", stop_token_id=EOS)
    await until(lambda: b"response.completed" in second.sent)
    followed = second.sent.decode()
    whole = (await client.send("GET", f"{PATH}/{response_id}", query="stream=true")).events
    kinds = [event["type"] for event in whole]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event["response"]["status"] for event in whole[:3]] == ["queued", "queued", "in_progress"]
    numbers = [json.loads(block.split("data: ")[1])["sequence_number"] for block in followed.split("\n\n")[:-1]]
    assert numbers == list(range(2, len(whole)))
    assert whole[-1]["response"] == await client.get(response_id)
    nothing = await client.send("GET", f"{PATH}/{response_id}", query="stream=true&starting_after=999")
    assert (nothing.status, nothing.text) == (200, "")
    included = await client.send(
        "GET", f"{PATH}/{response_id}", query="stream=true&include=reasoning.encrypted_content"
    )
    assert (included.status, included.error["param"]) == (400, "include")


async def test_a_background_response_is_continued() -> None:
    client = Client(Place())
    first = await client.begin(input="one")
    early = await client.send("POST", PATH, {"input": "x", "previous_response_id": first["id"]})
    assert early.error["code"] == "previous_response_not_found"
    client.engine.deliver(0, "two", "stop", stop_token_id=EOS)
    await until(lambda: len(client.place.store) == 1)
    await client.begin(input="three", previous_response_id=first["id"])
    assert [message["content"] for message in client.place.messages] == ["one", "two", "three"]


def test_a_follower_that_is_ahead_gets_what_it_asked_for() -> None:
    """`starting_after` beyond the last event: those events alone, however they come."""
    recording, sink = Recording(), FakeSink()
    recording.write(b"0\n\n")
    recording.follow(sink, after=2)
    for chunk in (b"1\n\n", b"2\n\n3\n\n", b"4\n\n"):
        recording.write(chunk)
    assert b"".join(sink.raw) == b"3\n\n4\n\n"


def test_a_recording_is_bounded() -> None:
    recording = Recording(max_bytes=40)
    first = FakeSink()
    recording.follow(first)
    for number in range(10):
        recording.write(b"data: %d\n\n" % number)
    assert recording.size <= 40
    assert len(first.raw) == 10
    with pytest.raises(InvalidRequestError) as caught:
        recording.follow(FakeSink(), 0)
    assert caught.value.param == "starting_after"
    late = FakeSink()
    recording.follow(late, 8)
    recording.leave(first)
    recording.write(b"data: a\n\ndata: b\n\n")
    recording.end()
    assert b"".join(late.raw) == b"data: 9\n\ndata: a\n\ndata: b\n\n"
    assert (late.ended, first.ended) == (True, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_bodies_of_responses_that_are_being_made_count(stream: bool) -> None:
    client = Client(Place(Bench(formats=THINKS_AND_CALLS, max_body_bytes_in_flight=150_000)))
    # No part of the prompt.
    body = {**BACKGROUND, "stream": stream, "max_output_tokens": 5, "safety_identifier": "x" * 100_000}
    asked, done = client.engine.requests, list[str]()
    for at, end in enumerate(("stop", "cancel", "stop")):
        begun = asyncio.ensure_future(client.send("POST", PATH, body))
        await until(lambda: len(asked) > len(done))
        refused = await client.send("POST", PATH, body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        if end == "cancel" and not stream:
            (response_id,) = [(await begun).json()["id"]]
            assert (await client.send("POST", f"{PATH}/{response_id}/cancel")).status == 200
        else:
            client.engine.deliver(at, "a", "stop", stop_token_id=EOS)
        await begun
        await until(lambda: not client.place.bench.service.in_progress)
        done.append(end)


def test_a_context_keeps_little_of_a_request() -> None:
    context = RequestContext()
    large = {"messages": [{"role": "user", "content": "x" * 1000}], "guided_json": {"type": "object"}, "temperature": 0}
    context.asks(parse_object("chat.completions", large))
    assert context.request is not None
    assert len(str(context.request)) < 1000
    assert context.request.structured is not None
    assert context.request.sampling.temperature == 0
