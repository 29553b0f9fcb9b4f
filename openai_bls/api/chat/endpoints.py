"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.chat import model_serving, serving
from openai_bls.api.chat.chunks import Answer, ChatChoice, ChatChunkChoice, Chunk, TextChoice, TextChunkChoice
from openai_bls.api.chat.model_serving import ChatModelRequest
from openai_bls.api.chat.render_endpoints import RENDERING
from openai_bls.api.chat.schema import UNSUPPORTED, UNSUPPORTED_IN_CHAT, ChatCompletionRequest, CompletionRequest
from openai_bls.api.chat.validation import Body, parse_json, parse_object
from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.encoding import encode
from openai_bls.api.common.events.event_sink import Cancellable, ChunkSink
from openai_bls.api.common.large_bodies import is_large, parsed
from openai_bls.api.common.lifted import Lifted, lifted_body
from openai_bls.api.endpoint import Endpoint, Operation, Respond, Smoke, expect
from openai_bls.api.http.handlers import Api
from openai_bls.core.errors import InvalidRequestError, ModelAnswerError
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service

_Checked = ChatModelRequest | tuple[ValidRequest, Target]
"""A request to a chat model, or one to an engine with what its `model` names."""


async def generate(api: Api, request: Request, context: RequestContext, name: Body, body: bytes) -> Response:
    """Answer to a request, streamed or whole.

    Args:
        name: name of the endpoint that takes the body.
        body: body as `Api.body` gives it.

    Raises:
        ApiError: the body is bad, or no model takes it.
    """
    service = api.service
    context.endpoint = name
    max_items, large = service.models.longest_context, is_large(body)
    unknown = service.settings.unknown_fields

    def parse() -> ValidRequest:
        if not large:
            return parse_json(name, body, max_items, unknown)
        return lifted_body(body).parse(lambda text, put_back: put_back(parse_json(name, text, max_items, unknown)))

    checked = await _checked(service, context, name, parse, lambda: json_object(body), large=large)
    if not _streams(checked):
        return await api.answered(request, context, _answer(service, context, checked))
    stream = api.event_stream(context)
    generation = await _stream(service, context, checked, stream)
    return await api.streamed(request, context, stream, generation)


def _endpoint(name: Body, path: str, prompt: dict[str, Any], operation: Operation) -> Endpoint:
    async def handle(api: Api, request: Request, context: RequestContext) -> Response:
        return await generate(api, request, context, name, await api.body(request, context))

    def triton(given: Lifted[dict[str, Any]]) -> Respond:
        body = given.body

        async def respond(service: Service, context: RequestContext, sink: ChunkSink) -> bytes | Cancellable:
            max_items, unknown = service.models.longest_context, service.settings.unknown_fields

            def parse() -> ValidRequest:
                return given.parse(lambda body, put_back: put_back(parse_object(name, body, max_items, unknown)))

            large = is_large(body) or given.large
            checked = await _checked(service, context, name, parse, given.whole, large=large)
            if _streams(checked):
                return await _stream(service, context, checked, sink)
            return encode(await _answer(service, context, checked))

        if not isinstance(body.get("model"), str) and not is_large(body):
            # It is for an engine, so what is wrong can be said before there is one. Unknown fields are the service's.
            parse_object(name, body, unknown="ignore")
        return respond

    smoke = Smoke(body={**prompt, "max_tokens": 8, "temperature": 0}, check=_check)
    return Endpoint(name=name, paths=(path,), handler=handle, operation=operation, triton=triton, smoke=smoke)


def _streams(request: _Checked) -> bool:
    return request.stream if isinstance(request, ChatModelRequest) else request[0].stream


async def _answer(service: Service, context: RequestContext, request: _Checked) -> Answer[Any] | msgspec.Raw:
    if isinstance(request, ChatModelRequest):
        return await model_serving.answer(service, context, request)
    return await serving.answer(service, context, *request)


async def _stream(service: Service, context: RequestContext, request: _Checked, sink: ChunkSink) -> Cancellable:
    if isinstance(request, ChatModelRequest):
        return model_serving.StreamedAnswer(service, context, request, sink)
    return await serving.stream(service, context, *request, sink)


async def _checked(
    service: Service,
    context: RequestContext,
    name: Body,
    parse: Callable[[], ValidRequest],
    body: Callable[[], dict[str, Any]],
    *,
    large: bool,
) -> _Checked:
    """A request to an engine, or to a chat model, which may have any fields.

    Args:
        service: service that takes the request.
        context: context of the request.
        name: name of the endpoint.
        parse: makes the request to an engine.
        body: gives the body of the request.
        large: both take a while.

    Raises:
        ApiError: it is neither.
    """
    try:
        request = await parsed(parse, large=large, key=context.key)
    except InvalidRequestError:
        if name != model_serving.ENDPOINT:
            raise
        named = (await parsed(body, large=large, key=context.key)).get("model")
        found = await service.models.look_for(named) if isinstance(named, str) else None
        if not model_serving.is_chat(found):
            raise
    else:
        context.asks(request)
        found = await service.models.look_for(request.model)
        if name != model_serving.ENDPOINT or not model_serving.is_chat(found):
            return request, service.target(context, request.model, found)
    chat = ChatModelRequest(found, await parsed(body, large=large, key=context.key))
    # What an engine takes, and ignores, of the same body says nothing of this model.
    context.request, context.ignored, context.stream = None, (), chat.stream
    return chat


def _check(answer: Any) -> str:
    (choice,) = answer["choices"]
    expect(choice["finish_reason"] in ("stop", "length"), f"finish_reason is {choice['finish_reason']!r}")
    usage = answer["usage"]
    expect(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], f"usage is {usage}")
    return f"{usage['completion_tokens']} tokens"


ENDPOINTS = (
    _endpoint(
        "chat.completions",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Say hello."}]},
        Operation(
            summary="The answer to a conversation",
            body=ChatCompletionRequest,
            answer=Answer[ChatChoice],
            events=Chunk[ChatChunkChoice],
            errors=frozenset({ModelAnswerError}),
            unsupported={ChatCompletionRequest: UNSUPPORTED_IN_CHAT},
        ),
    ),
    _endpoint(
        "completions",
        "/v1/completions",
        {"prompt": "Hello"},
        Operation(
            summary="The continuation of a text",
            body=CompletionRequest,
            answer=Answer[TextChoice],
            events=Chunk[TextChunkChoice],
            unsupported={CompletionRequest: UNSUPPORTED},
        ),
    ),
    *RENDERING,
)
