"""/v1/messages and below: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.chat.generate_request import GenerateRequest
from openai_bls.api.chat.render_endpoints import check_rendered
from openai_bls.api.chat.rendering import rendered_one
from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.common.lifted import PutBack, lifted_body
from openai_bls.api.common.one_shot import count_prompt_tokens, prompt_token_ids
from openai_bls.api.endpoint import ApiHandler, Endpoint, Operation, Smoke, expect
from openai_bls.api.http.disconnect import unless_disconnected
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.api.messages.answers import ErrorAnswer, MessageAnswer, MessageEvent, TokenCount
from openai_bls.api.messages.context_edits import Cleared, Edited, clear, edited
from openai_bls.api.messages.context_schema import Edit
from openai_bls.api.messages.conversion import Converted, convert, decode
from openai_bls.api.messages.errors import OVERLOADED, error_body, too_long
from openai_bls.api.messages.schema import UNSUPPORTED, Message, MessagesRequest, PromptRequest
from openai_bls.api.messages.tools import tools_placed
from openai_bls.api.messages.writers import MAX_SILENCE_S, PING, StreamedMessage, WholeMessage
from openai_bls.core.errors import ApiError, ContextLengthError, OverloadedError
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target

RequestT = TypeVar("RequestT", bound=PromptRequest)


def _answer_error(error: ApiError, context: RequestContext) -> Response:
    body = {**error_body(error), "request_id": context.request_id}
    status = OVERLOADED if error.status == 503 else error.status
    return JsonResponse(body, status_code=status, headers=error.headers)


async def _parsed(
    api: Api, request: Request, context: RequestContext, kind: type[RequestT]
) -> tuple[RequestT, Converted, Target]:
    """The request's body, the chat completion that it becomes, and what its `model` names."""

    def parse(body: bytes, put_back: PutBack) -> tuple[RequestT, Converted, Target]:
        ignored = IgnoredFields(api.service.settings.unknown_fields)
        given = decode(body, kind, ignored)
        # Converted only for a model that there is.
        context.stream = bool(getattr(given, "stream", None))
        target = api.service.find(context, given.model)
        converted = _converted(target, given, ignored)
        return given, converted._replace(valid=put_back(converted.valid)), target

    def parse_whole(body: bytes) -> tuple[RequestT, Converted, Target]:
        text = lifted_body(body)
        found = text.parse(parse)
        # What has been lifted has no place to go back to once it is cleared.
        return parse(body, lambda valid: valid) if found[1].edits and text.large else found

    return await api.parsed(request, context, parse_whole)


def _converted(target: Target, given: PromptRequest, ignored: IgnoredFields) -> Converted:
    model = target.model
    return convert(given, ignored, thinks=model.formats.reasoning is not None, max_items=model.info.max_model_len)


async def _edited(
    api: Api, context: RequestContext, given: PromptRequest, converted: Converted, target: Target
) -> Edited:
    """The request after the edits of its `context_management`, of which its context is told."""

    async def cleared(edit: Edit, messages: list[Message]) -> Cleared:
        return await parsed(lambda: clear(edit, messages), large=len(messages) > 1, key=context.key)

    async def convert_messages(messages: list[Message]) -> ValidRequest:
        changed = msgspec.structs.replace(given, messages=messages)
        ignored = IgnoredFields(api.service.settings.unknown_fields)
        result = await parsed(lambda: _converted(target, changed, ignored), large=len(messages) > 1, key=context.key)
        # What was in the blocks that are cleared counts as well.
        return msgspec.structs.replace(result.valid, ignored=converted.valid.ignored)

    result = Edited(converted.valid, [], None)
    context.asks(result.valid)
    if converted.edits:
        result = await edited(
            converted.edits,
            given.messages,
            converted.valid,
            cleared,
            convert_messages,
            lambda valid: count_prompt_tokens(api.service, context, valid, target),
        )
        context.asks(result.valid)
    return result


@asynccontextmanager
async def _errors_told(
    api: Api,
    context: RequestContext,
    body: MessagesRequest,
    valid: ValidRequest,
    target: Target,
    tools: Sequence[int],
) -> AsyncIterator[None]:
    """Errors raised inside, with the body's places of tools; those of length in Anthropic's words, with the numbers.

    A text that is too long for certain has been refused without being tokenized; it is now.
    """
    try:
        with tools_placed(tools):
            yield
    except ContextLengthError as error:
        tokens = error.prompt_tokens
        if tokens is None:
            tokens = await count_prompt_tokens(api.service, context, valid, target)
        raise too_long(tokens, error.max_model_len, body.max_tokens) from None


async def _create(api: Api, request: Request, context: RequestContext) -> Response:
    body, converted, target = await _parsed(api, request, context, MessagesRequest)
    valid, applied, _ = await unless_disconnected(request, _edited(api, context, body, converted, target))
    options: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "omit_thinking": converted.omit_thinking,
        "applied_edits": None if body.context_management is None else applied,
    }
    if not valid.stream:

        async def completed() -> dict[str, Any]:
            async with _errors_told(api, context, body, valid, target, converted.tools):
                return await api.service.complete(context, valid, target, lambda: WholeMessage(body.model, **options))

        return await api.answered(request, context, completed())
    stream = api.event_stream(context, MAX_SILENCE_S, ending=b"", keep_alive=PING)
    async with _errors_told(api, context, body, valid, target, converted.tools):
        generation, writer = await api.service.prepare(
            context, valid, target, lambda: StreamedMessage(stream, body.model, **options)
        )
    generation.start(lambda: writer.open(generation.usage))
    return await api.streamed(request, context, stream, generation, _answer_error)


async def _count_tokens(api: Api, request: Request, context: RequestContext) -> Response:
    body, converted, target = await _parsed(api, request, context, PromptRequest)

    async def counted() -> dict[str, Any]:
        valid, _, original = await _edited(api, context, body, converted, target)
        tokens = len(await prompt_token_ids(api.service, context, valid, target))
        counts: dict[str, Any] = {"input_tokens": tokens}
        if body.context_management is not None:
            counts["context_management"] = {"original_input_tokens": tokens if original is None else original}
        return counts

    return await api.answered(request, context, counted())


async def _render(api: Api, request: Request, context: RequestContext) -> Response:
    body, converted, target = await _parsed(api, request, context, MessagesRequest)

    async def rendered() -> GenerateRequest:
        valid, _, _ = await _edited(api, context, body, converted, target)
        async with _errors_told(api, context, body, valid, target, converted.tools):
            return await rendered_one(api.service, context, valid, target, "msg_")

    return await api.answered(request, context, rendered())


def _endpoint(name: str, path: str, handler: ApiHandler, smoke: Smoke, summary: str, **types: Any) -> Endpoint:
    operation = Operation(
        summary=summary,
        **types,
        error=ErrorAnswer,
        statuses={OverloadedError.status: OVERLOADED},
        unsupported={types["body"]: UNSUPPORTED},
    )
    return Endpoint(
        name=name,
        paths=(path,),
        handler=handler,
        operation=operation,
        answer_error=_answer_error,
        id_header="request-id",
        smoke=smoke,
    )


def _check_message(answer: Any) -> str:
    expect(answer["stop_reason"] in ("end_turn", "max_tokens"), f"stop_reason is {answer['stop_reason']!r}")
    return f"{answer['usage']['output_tokens']} tokens"


def _check_count(answer: Any) -> str:
    expect(answer["input_tokens"] > 0, "'input_tokens' is not above 0")
    return f"{answer['input_tokens']} tokens"


_MESSAGES = [{"role": "user", "content": "Say hello."}]

ENDPOINTS = (
    _endpoint(
        "messages",
        "/v1/messages",
        _create,
        Smoke(body={"messages": _MESSAGES, "max_tokens": 8}, check=_check_message),
        "The next message of a conversation",
        body=MessagesRequest,
        answer=MessageAnswer,
        events=MessageEvent,
    ),
    _endpoint(
        "messages.count_tokens",
        "/v1/messages/count_tokens",
        _count_tokens,
        Smoke(body={"messages": _MESSAGES}, check=_check_count),
        "Number of a prompt's tokens",
        body=PromptRequest,
        answer=TokenCount,
    ),
    _endpoint(
        "messages.render",
        "/v1/messages/render",
        _render,
        Smoke(body={"messages": _MESSAGES, "max_tokens": 8}, check=check_rendered),
        "Token ids and sampling parameters of a message, which is not made",
        body=MessagesRequest,
        answer=GenerateRequest,
    ),
)
