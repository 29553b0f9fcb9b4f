"""/v1/responses in process, and the official SDK's types to hold what it answers against."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, get_args

import msgspec
import pydantic
from openai.types.responses import Response, ResponseStreamEvent
from starlette.applications import Starlette

from openai_bls.api.http.handlers import Api
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.responses.conversations import endpoints as conversation_endpoints
from openai_bls.api.responses.conversations.endpoints import ConversationHandlers
from openai_bls.api.responses.conversations.store import ConversationStore
from openai_bls.api.responses.endpoints import ENDPOINTS, ResponsesHandlers
from openai_bls.api.responses.store import ResponseStore
from openai_bls.output.detect import detect
from tests.unit.core_support import EOS, WAIT_S, Answered, Bench, ask, until

PATH = "/v1/responses"
THINKS_AND_CALLS = detect(None, tool_call_parser="hermes", reasoning_parser="think")

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def call_text(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# What OpenAI's service sends although the SDK's types do not have it.
_EXTRAS = {
    "Response.store",
    "Response.presence_penalty",
    "Response.frequency_penalty",
    "LogprobTopLogprob.bytes",
    "Logprob.bytes",
    "ResponseCustomToolCall.status",
    # Ours: names of functions in several namespaces.
    "ToolChoiceFunction.namespace",
}


_EVENTS: dict[str, Any] = {
    get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}


def checked_event(event: dict[str, Any]) -> None:
    """A type that the SDK does not know is a KeyError."""
    checked(_EVENTS[event["type"]], event)


@cache
def _adapter(model: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(model)


def checked(model: Any, value: Any) -> Any:
    """`value` as the SDK's type, nothing missing and nothing that it does not know."""
    parsed = _adapter(model).validate_python(value)
    assert _unknown(parsed) <= _EXTRAS
    return parsed


def _unknown(value: Any) -> set[str]:
    if isinstance(value, pydantic.BaseModel):
        found = {f"{type(value).__name__}.{name}" for name in value.model_extra or ()}
        for name in type(value).model_fields:
            found |= _unknown(getattr(value, name))
        return found
    if isinstance(value, list):
        return set().union(*(_unknown(item) for item in value))
    return set()


class Reply(Answered):
    """What was answered."""

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def error(self) -> dict[str, Any]:
        body = self.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        found: dict[str, Any] = body["error"]
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """Each checked: its frame, its type, its number."""
        *blocks, rest = self.text.split("\n\n")
        assert rest == ""
        events = []
        for block in blocks:
            if block.startswith(":"):
                continue
            kind, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert kind == f"event: {event['type']}"
            checked_event(event)
            events.append(event)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events


class Client:
    """Clients of one application, on the running event loop."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.engine = place.bench.engine
        self.app = place.app()

    async def send(self, method: str, path: str, body: Any = b"", *, query: str = "", key: str = "") -> Reply:
        async def with_query(scope: dict[str, Any], *rest: Any) -> None:
            await self.app({**scope, "query_string": query.encode()}, *rest)

        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = [("authorization", f"Bearer {key}")] if key else []
        answered = await asyncio.wait_for(ask(with_query, method, path, content, headers), WAIT_S)
        return Reply(answered.status, answered.headers, answered.body)

    async def get(self, response_id: str, query: str = "") -> dict[str, Any]:
        reply = await self.send("GET", f"{PATH}/{response_id}", query=query)
        assert reply.status == 200, reply.text
        found: dict[str, Any] = reply.json()
        checked(Response, found)
        return found

    async def begin(self, **body: Any) -> dict[str, Any]:
        """A response in the background."""
        reply = await self.send("POST", PATH, {"input": "hi", "background": True, **body})
        assert reply.status == 200, reply.text
        found: dict[str, Any] = reply.json()
        checked(Response, found)
        return found


class Place:
    """A server for a test: its store outlives the requests.

    Args:
        bench: what answers; None is a model that thinks and calls.
        store: None is one with the usual bounds.
    """

    def __init__(self, bench: Bench | None = None, store: ResponseStore | None = None) -> None:
        self.bench = bench if bench is not None else Bench(formats=THINKS_AND_CALLS)
        self.store = store if store is not None else ResponseStore()
        self.conversations = ConversationStore()

    def app(self) -> Starlette:
        """The routes alone; for a running event loop."""
        api = Api(self.bench.service, WriteBatcher(asyncio.get_running_loop()))
        responses, conversations = api.shared(ResponsesHandlers), api.shared(ConversationHandlers)
        responses.store = conversations.responses = self.store
        responses.conversations = conversations.store = self.conversations
        endpoints = (*ENDPOINTS, *conversation_endpoints.ENDPOINTS)
        return Starlette(routes=[route for endpoint in endpoints for route in endpoint.routes(api)])

    def ask(
        self, method: str, path: str, body: Any = b"", query: str = "", feed: Callable[[], None] | None = None
    ) -> Reply:
        """A request; `feed` is called once it is with the engine."""
        before = len(self.bench.engine.requests)

        async def main() -> Reply:
            task = asyncio.ensure_future(Client(self).send(method, path, body, query=query))
            await until(lambda: len(self.bench.engine.requests) > before or task.done())
            if feed is not None:
                feed()
            return await task

        reply = asyncio.run(main())
        assert self.bench.service.in_progress == 0
        return reply

    def refused(self, **body: Any) -> dict[str, Any]:
        """The error of a request that is refused at once."""
        for stream in (False, True):
            reply = self.ask("POST", PATH, {"input": "hi", **body, "stream": stream})
            assert reply.status == 400, reply.text
        assert not self.bench.engine.requests
        return reply.error

    def create(self, body: dict[str, Any], pieces: Sequence[str] = ("ok",), reason: str = "stop", **last: Any) -> Reply:
        """A request that the engine answers with `pieces`, a delta each."""

        def feed() -> None:
            at = len(self.bench.engine.requests) - 1
            for piece in pieces[:-1]:
                self.bench.engine.deliver(at, piece)
            stop = EOS if reason == "stop" else None
            self.bench.engine.deliver(at, pieces[-1], reason, stop_token_id=stop, **last)

        return self.create_fed({"input": "hi", **body}, feed)

    def create_fed(self, body: dict[str, Any] | bytes, feed: Callable[[], None]) -> Reply:
        return self.ask("POST", PATH, body, feed=feed)

    def whole(self, body: dict[str, Any], pieces: Sequence[str] = ("ok",), reason: str = "stop") -> dict[str, Any]:
        """The response to a request that succeeds."""
        reply = self.create(body, pieces, reason)
        assert reply.status == 200, reply.text
        response: dict[str, Any] = reply.json()
        checked(Response, response)
        return response

    def streamed(
        self, body: dict[str, Any], pieces: Sequence[str] = ("ok",), reason: str = "stop"
    ) -> list[dict[str, Any]]:
        """The events of a request that succeeds."""
        reply = self.create({**body, "stream": True}, pieces, reason)
        assert reply.status == 200, reply.text
        assert reply.headers["content-type"].startswith("text/event-stream")
        return reply.events

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What the chat template was last given."""
        return self.bench.prompts.requests[-1].messages or []


_VOLATILE = {"id", "item_id", "call_id", "created_at", "completed_at"}


def anonymous(value: Any) -> Any:
    """Without what is made up anew for each response."""
    if isinstance(value, dict):
        return {name: anonymous(v) for name, v in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        return [anonymous(item) for item in value]
    return value
