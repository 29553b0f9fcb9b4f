"""Background responses: their states, their streams that are followed again, and their ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai.types.responses import Response

from openai_bls.api.responses.recording import Recording
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.http.test_guards import as_response
from tests.unit.api.http_support import leaving, until
from tests.unit.api.responses.responses_support import Place, Reply, checked
from tests.unit.core_support import EOS, WAIT_S, Bench, ask

PATH = "/v1/responses"


class Client:
    """Clients of one application; to be made on the running event loop."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.engine = place.bench.engine
        self.app = place.app()

    async def send(self, method: str, path: str, body: Any = b"", query: str = "") -> Reply:
        async def with_query(scope: dict[str, Any], *rest: Any) -> None:
            await self.app({**scope, "query_string": query.encode()}, *rest)

        answered = await asyncio.wait_for(ask(with_query, method, path, body), WAIT_S)
        return Reply(answered.status, answered.headers, answered.body)

    async def get(self, response_id: str, query: str = "") -> dict[str, Any]:
        reply = await self.send("GET", f"{PATH}/{response_id}", query=query)
        assert reply.status == 200, reply.text
        found: dict[str, Any] = reply.json()
        checked(Response, found)
        return found

    async def begin(self, **body: Any) -> dict[str, Any]:
        reply = await self.send("POST", PATH, {"input": "hi", "background": True, **body})
        assert reply.status == 200, reply.text
        found: dict[str, Any] = reply.json()
        checked(Response, found)
        return found


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
        for body, status in (({"model": "gpt"}, 404), ({"max_output_tokens": 9999}, 400)):
            reply = await client.send("POST", PATH, {"input": "hi", "background": True, "stream": stream, **body})
            assert reply.status == status
    assert not client.engine.requests


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling(stream: bool) -> None:
    client = Client(Place())
    task = asyncio.ensure_future(client.send("POST", PATH, {"input": "hi", "background": True, "stream": stream}))
    await until(lambda: client.engine.requests)
    response_id = ""
    if not stream:
        response_id = (await task).json()["id"]
    client.engine.deliver(0, "half")
    if stream:
        (response_id,) = _running(client)
    reply = await client.send("POST", f"{PATH}/{response_id}/cancel")
    checked(Response, reply.json())
    assert (reply.status, reply.json()["status"]) == (200, "cancelled")
    assert reply.json()["output"][0]["content"][0]["text"] == "half"
    assert reply.json()["output"][0]["status"] == "incomplete"
    assert client.engine.cancelled == [client.engine.requests[0].request_id]
    assert await client.get(response_id) == reply.json()
    assert (await client.send("POST", f"{PATH}/{response_id}/cancel")).json() == reply.json()
    if stream:
        events = (await task).events
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "response_cancelled")
    assert client.place.bench.service.in_progress == 0


def _running(client: Client) -> list[str]:
    """The ids of the responses that the recorded handlers are making."""
    from openai_bls.api.responses.endpoints import ResponsesHandlers

    jobs = client.place.api.shared(ResponsesHandlers)._jobs
    return list(jobs._running)


async def test_a_deleted_one_is_cancelled() -> None:
    client = Client(Place())
    first = await client.begin()
    assert (await client.send("DELETE", f"{PATH}/{first['id']}")).json()["deleted"] is True
    assert client.engine.cancelled == [client.engine.requests[0].request_id]
    assert (await client.send("GET", f"{PATH}/{first['id']}")).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_are_found_later(stream: bool) -> None:
    client = Client(Place())
    task = asyncio.ensure_future(client.send("POST", PATH, {"input": "hi", "background": True, "stream": stream}))
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
    task, gone = leaving(client.app, PATH, {"input": "hi", "background": True, "stream": True})
    await until(lambda: client.engine.requests)
    client.engine.deliver(0, "one ")
    await until(lambda: _running(client))
    (response_id,) = _running(client)
    gone.set()
    await asyncio.wait_for(task, WAIT_S)
    assert client.engine.cancelled == []
    follower = asyncio.ensure_future(client.send("GET", f"{PATH}/{response_id}", query="stream=true&starting_after=1"))
    await asyncio.sleep(0.01)
    client.engine.deliver(0, "two", "stop", stop_token_id=EOS)
    followed = (await follower).text
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


class _Sink:
    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.ended = False

    def write(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def end(self) -> None:
        self.ended = True

    def fail(self, error: Any, event: bytes) -> None:
        raise AssertionError


def test_a_recording_is_bounded() -> None:
    recording = Recording(max_bytes=40)
    first = _Sink()
    recording.follow(first)
    for number in range(10):
        recording.write(b"data: %d\n\n" % number)
    assert recording.size <= 40
    assert len(first.chunks) == 10
    with pytest.raises(InvalidRequestError) as caught:
        recording.follow(_Sink(), 0)
    assert caught.value.param == "starting_after"
    late = _Sink()
    recording.follow(late, 8)
    recording.leave(first)
    recording.write(b"data: a\n\ndata: b\n\n")
    recording.end()
    assert b"".join(late.chunks) == b"data: 9\n\ndata: a\n\ndata: b\n\n"
    assert (late.ended, first.ended) == (True, False)
