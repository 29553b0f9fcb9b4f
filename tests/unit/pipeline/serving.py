"""Requests to a `Service` through the chat API, and what comes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from openai_bls.api.chat import serving
from openai_bls.api.common.encoding import encode
from openai_bls.core.errors import ApiError
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.generation.generation import Generation
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service
from tests.unit.core_support import (
    EOS,
    Bench,
    FakeSink,
    request_context,
)

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


async def answered(service: Service, context: RequestContext, request: ValidRequest) -> Any:
    return await serving.answer(service, context, request, await service.look_for(context, request))


async def streamed(service: Service, context: RequestContext, request: ValidRequest, sink: FakeSink) -> Generation:
    return await serving.stream(service, context, request, await service.look_for(context, request), sink)


async def begin(bench: Bench, request: ValidRequest) -> asyncio.Task[Any]:
    """A whole answer whose sequences have reached the engine."""
    before = len(bench.engine.requests)
    task = asyncio.ensure_future(answered(bench.service, request_context(), request))
    while len(bench.engine.requests) == before and not task.done():
        await asyncio.sleep(0)
    return task


async def whole(bench: Bench, request: ValidRequest, *pieces: Any, reason: str = "length", **last: Any) -> Any:
    """The body of an answer made of pieces, a delta each; `last` comes with the last of them."""
    before = len(bench.engine.requests)
    task = await begin(bench, request)
    for piece in pieces[:-1]:
        bench.engine.deliver(before, piece)
    bench.engine.deliver(before, pieces[-1], reason, stop_token_id=EOS if reason == "stop" else None, **last)
    return body_of(await task)


async def stream(bench: Bench, request: ValidRequest, *, open_at_once: bool = False) -> FakeSink:
    sink = FakeSink(opens_at_once=open_at_once)
    await streamed(bench.service, request_context(), request, sink)
    return sink


async def refused(bench: Bench, request: ValidRequest) -> ApiError:
    """The same error streamed and not; nothing stays behind."""
    with pytest.raises(ApiError) as caught:
        await answered(bench.service, request_context(), request)
    sink = FakeSink(opens_at_once=True)
    with pytest.raises(ApiError) as while_streaming:
        await streamed(bench.service, request_context(), request, sink)
    assert sink.raw == []
    assert caught.value.body() == while_streaming.value.body()
    assert bench.service.in_progress == 0
    assert bench.engine.requests == []
    return caught.value


def body_of(answer: Any) -> Any:
    return json.loads(encode(answer))


async def both_ways(
    make: Callable[..., ValidRequest], feed: Callable[[Bench], None], **options: Any
) -> tuple[Any, FakeSink]:
    """The body of a whole answer, and the sink of a stream that the engine feeds alike."""
    bench = Bench(**options)
    task = await begin(bench, make())
    feed(bench)
    body = body_of(await task)
    bench = Bench(**options)
    sink = await stream(bench, make(stream=True))
    feed(bench)
    while not sink.ended:
        await asyncio.sleep(0)
    assert sink.ends == 1
    return body, sink
