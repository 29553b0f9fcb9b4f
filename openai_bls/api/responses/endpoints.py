"""/v1/responses and below: OpenAI's Responses API."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.chat.generate_request import GenerateRequest
from openai_bls.api.chat.logprobs import LogprobRenderer
from openai_bls.api.chat.render_endpoints import check_rendered
from openai_bls.api.chat.rendering import rendered_one
from openai_bls.api.common.fields import UnknownFields
from openai_bls.api.common.one_shot import prompt_token_ids
from openai_bls.api.common.queries import NoQuery, parse_query
from openai_bls.api.endpoint import Endpoint, Operation, Smoke, expect
from openai_bls.api.http.disconnect import unless_disconnected
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.api.responses import answers, parsing, schema
from openai_bls.api.responses.background import BackgroundStream, Following, Job, Jobs, recording_of
from openai_bls.api.responses.compaction import QUESTION, CompactedResponse, summary_request
from openai_bls.api.responses.conversations.store import ConversationStore, conversation_store
from openai_bls.api.responses.items import (
    OPTIONAL_TAGS,
    UNSUPPORTED_IN_ITEMS,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
)
from openai_bls.api.responses.kept import changed, copied, kept_output
from openai_bls.api.responses.queries import (
    check_included,
    is_background,
    item_page,
    parse_retrieve,
    parse_with_include,
    with_included,
)
from openai_bls.api.responses.recording import Recording
from openai_bls.api.responses.responses import Draft
from openai_bls.api.responses.schema import ENCRYPTED
from openai_bls.api.responses.store import References, ResponseStore, Stored, response_store
from openai_bls.api.responses.tools.items import CustomToolCall
from openai_bls.api.responses.tools.schema import UNSUPPORTED_IN_TOOLS, CustomTool, FunctionTool
from openai_bls.api.responses.tools.toolbox import Toolbox
from openai_bls.api.responses.writers import StreamedResponse, WholeResponse
from openai_bls.core.errors import ApiError, InvalidRequestError, NotFoundError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target

logger = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=parsing.Request)


_MUCH_BODY_BYTES = 1 << 20
"""Bytes of a body that counts for as long as its response is streamed, which has most of it once more."""


class _Ended(msgspec.Struct):
    """The status of a response whose output may go to a conversation."""

    status: str


_decode_ended = msgspec.json.Decoder(_Ended).decode


class ResponsesHandlers:
    """Handlers of one application, which share a store."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._service = api.service
        self.store: ResponseStore = api.shared(response_store)
        self.conversations: ConversationStore = api.shared(conversation_store)
        self._jobs = Jobs(self)

    async def create(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/responses."""
        wanted = await self._parsed(request, context, parsing.parse_create)
        try:
            target = await self._service.look_for(context, wanted.chat)
            self._check_room(wanted)
            if wanted.body.background:
                return await self._begin(request, context, wanted, target)
            if wanted.body.stream:
                return await self._stream(request, context, wanted, target)
            completing = self._service.complete(
                context, wanted.chat, target, lambda: WholeResponse(*self._parts(wanted, target))
            )
            response = await self._api.answered(request, context, completing)
        except ApiError as error:
            raise wanted.translated(error) from None
        # Not before: a guard may have changed the answer, and the next one must not be made from what it has removed.
        made = bytes(response.body)
        told = self._keep(wanted, made)
        return response if told is made else JsonResponse(Raw(told))

    async def _stream(
        self, request: Request, context: RequestContext, wanted: parsing.CreateRequest, target: Target
    ) -> Response:
        stream = self._api.event_stream(context, ending=b"")
        generation = await self._service.begin(
            context,
            wanted.chat,
            target,
            lambda: StreamedResponse(
                stream, wanted.translated, lambda encoded: self._keep(wanted, encoded), *self._parts(wanted, target)
            ),
        )
        context.keeps_body = context.body_bytes > _MUCH_BODY_BYTES
        return await self._api.streamed(request, context, stream, generation)

    async def _begin(
        self, request: Request, context: RequestContext, wanted: parsing.CreateRequest, target: Target
    ) -> Response:
        """Begin a background response; refused like any other until the engine has its request."""
        # Nobody waits for it, so that the number of connections bounds nothing.
        context.keeps_body = True
        if not wanted.body.stream:
            starting = self._service.start(
                context, wanted.chat, target, lambda: WholeResponse(*self._parts(wanted, target))
            )
            generation, writer = await unless_disconnected(request, starting)
            job = Job(wanted, writer, generation, None, context.guarded)
            self._jobs.run(job)
            return JsonResponse(Raw(job.stored().response))
        recording = Recording()
        streams: list[BackgroundStream] = []

        def make_stream() -> BackgroundStream:
            parts = self._parts(wanted, target)
            keep = functools.partial(self._jobs.ended, parts[0].id)
            streams.append(BackgroundStream(recording, wanted.translated, keep, *parts))
            return streams[0]

        async def begin() -> None:
            generation = await self._service.begin(context, wanted.chat, target, make_stream)
            # Before the first token.
            self._jobs.follow(Job(wanted, streams[0], generation, recording, None))
            streams[0].open()

        await unless_disconnected(request, begin())
        return await self._followed(request, context, recording)

    async def _followed(
        self, request: Request, context: RequestContext, recording: Recording, after: int = -1
    ) -> Response:
        stream = self._api.event_stream(context, ending=b"")
        return await self._api.streamed(request, context, stream, Following(recording, stream, after))

    def _parts(
        self, wanted: parsing.CreateRequest, target: Target
    ) -> tuple[Draft, LogprobRenderer | None, bool, Toolbox]:
        """Arguments that all writers take."""
        model = target.model
        name = wanted.chat.model or model.info.model_name
        draft = Draft(wanted.body, wanted.shown_tools, name, model.info.sampling_defaults)
        renderer = LogprobRenderer(model.detokenizers, chat=True) if wanted.chat.logprobs is not None else None
        return draft, renderer, ENCRYPTED in (wanted.body.include or ()), wanted.tools

    def _check_room(self, wanted: parsing.CreateRequest) -> None:
        """Refuse what cannot be kept, before anything is generated.

        A response that the client did not ask in so many words to store is answered all the same, with `store` false.
        """
        body = wanted.body
        if wanted.conversation_id is not None:
            self.conversations.check_input(wanted.conversation_id, wanted.key, wanted.kept.own)
        if body.background or body.store:
            self.store.check_room(wanted.kept, wanted.key, "background" if body.background else "store")

    def _keep(self, wanted: parsing.CreateRequest, encoded: bytes) -> bytes:
        """Store a finished response, and add it to its conversation; the response as the client is to see it."""
        encoded = self.converse(wanted, encoded)
        if wanted.body.store is False:
            return encoded
        try:
            stored = Stored(encoded, wanted.kept, included=wanted.body.include or (), key=wanted.key)
        except msgspec.ValidationError as error:
            logger.error("a response that a guard has made is not stored: %s", error)
            return encoded
        if self.store.put(stored):
            return encoded
        logger.warning("response %s is not stored: there is no room for it", stored.id)
        return changed(encoded, store=False)

    def converse(self, wanted: parsing.CreateRequest, encoded: bytes) -> bytes:
        """Add a response that has come to its end to the conversation that it was made in, if there is one.

        The response as the client is to see it: without the conversation, if it cannot be added.
        """
        if wanted.conversation_id is None:
            return encoded
        try:
            status, (response_id, output) = _decode_ended(encoded).status, kept_output(encoded)
        except msgspec.ValidationError as error:
            logger.error("a response that a guard has made is not added to its conversation: %s", error)
            return encoded
        if status not in ("completed", "incomplete"):
            return encoded
        if self.conversations.answered(wanted.conversation_id, wanted.key, wanted.kept.own, copied(output)):
            return encoded
        logger.warning("response %s is not added to its conversation: it is gone, or has no room", response_id)
        return changed(encoded, conversation=None)

    async def count(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/responses/input_tokens."""
        wanted = await self._parsed(request, context, parsing.parse_count)
        try:
            return await self._api.answered(request, context, self._counted(context, wanted))
        except ApiError as error:
            raise wanted.translated(error) from None

    async def _counted(self, context: RequestContext, wanted: parsing.Request) -> dict[str, Any]:
        target = await self._service.look_for(context, wanted.chat)
        tokens = await prompt_token_ids(self._service, context, wanted.chat, target)
        return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    async def render(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/responses/render; what is about keeping and running the response changes nothing."""
        wanted = await self._parsed(request, context, parsing.parse_create)
        try:
            target = await self._service.look_for(context, wanted.chat)
            rendering = rendered_one(self._service, context, wanted.chat, target, "resp_")
            return await self._api.answered(request, context, rendering)
        except ApiError as error:
            raise wanted.translated(error) from None

    async def compact(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/responses/compact."""
        wanted = await self._parsed(request, context, functools.partial(parsing.parse_compact, question=QUESTION))
        try:
            chat = summary_request(wanted)
            target = await self._service.look_for(context, chat)
            writing = self._service.complete(context, chat, target, lambda: CompactedResponse(wanted))
            return await self._api.answered(request, context, writing)
        except ApiError as error:
            raise wanted.translated(error) from None

    async def retrieve(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/responses/{response_id}."""
        query = parse_retrieve(request)
        stored = self._stored(request, context)
        check_included(query, stored)
        if query.stream:
            after = -1 if query.starting_after is None else query.starting_after
            return await self._followed(request, context, recording_of(stored), after)
        return JsonResponse(Raw(await with_included(query, stored.response, context.key)))

    async def delete(self, request: Request, context: RequestContext) -> Response:
        """DELETE /v1/responses/{response_id}."""
        parse_query(request.query_params, NoQuery)
        response_id = self._stored(request, context).id
        job = self._jobs.get(response_id)
        if job is not None:
            self._jobs.cancel(job)
        self.store.delete(response_id)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request, context: RequestContext) -> Response:
        """GET /v1/responses/{response_id}/input_items."""
        query = parse_with_include(request, schema.PageQuery)
        return JsonResponse(await item_page(self._stored(request, context).inputs.kept, query, context.key))

    async def cancel(self, request: Request, context: RequestContext) -> Response:
        """POST /v1/responses/{response_id}/cancel; one that has ended stays as it is."""
        parse_query(request.query_params, NoQuery)
        stored = self._stored(request, context)
        job = self._jobs.get(stored.id)
        if job is not None:
            stored = self._jobs.cancel(job)
        elif not is_background(stored.response):
            raise InvalidRequestError(
                f"Response '{stored.id}' cannot be cancelled: only one that was created with 'background' can be. To "
                "cancel another that is being made, close the connection."
            )
        return JsonResponse(Raw(stored.response))

    async def _parsed(
        self,
        request: Request,
        context: RequestContext,
        parse: Callable[[bytes, References, int, UnknownFields], RequestT],
    ) -> RequestT:
        """Result of `parse` for the body; items that it refers to have the same limit as the body."""
        limit, unknown = self._service.settings.max_request_bytes, self._service.settings.unknown_fields
        max_items = self._service.models.longest_context

        def parsed(body: bytes) -> RequestT:
            references = References(self.store, limit, context.key, self.conversations)
            return parse(body, references, max_items, unknown)

        return await self._api.parsed(request, context, parsed)

    def _stored(self, request: Request, context: RequestContext) -> Stored:
        response_id, key = request.path_params["response_id"], context.key
        job = self._jobs.get(response_id)
        stored = self.store.get(response_id, key) if job is None else job.stored()
        if stored is None or stored.key != key:
            raise NotFoundError(f"Response with id '{response_id}' not found.")
        return stored


def _check_response(answer: Any) -> str:
    expect(answer["status"] in ("completed", "incomplete"), f"status is {answer['status']!r}")
    return f"{answer['usage']['output_tokens']} tokens"


def _check_count(answer: Any) -> str:
    expect(answer["input_tokens"] > 0, "'input_tokens' is not above 0")
    return f"{answer['input_tokens']} tokens"


_ONE = "/v1/responses/{response_id}"

_UNSUPPORTED = {
    **dict.fromkeys((schema.CreateRequest, schema.CountRequest, schema.CompactRequest), schema.UNSUPPORTED),
    **dict.fromkeys((FunctionTool, CustomTool), UNSUPPORTED_IN_TOOLS),
    **dict.fromkeys((FunctionCall, FunctionCallOutput, CustomToolCall, CustomToolCallOutput), UNSUPPORTED_IN_ITEMS),
    schema.Reasoning: {
        name.removeprefix("reasoning."): field
        for name, field in schema.UNSUPPORTED.items()
        if name.startswith("reasoning.")
    },
}


def _endpoint(
    name: str,
    method: str,
    path: str,
    handler: Callable[[ResponsesHandlers, Request, RequestContext], Awaitable[Response]],
    summary: str,
    *,
    smoke: Smoke | None = None,
    **types: Any,
) -> Endpoint:
    async def handle(api: Api, request: Request, context: RequestContext) -> Response:
        return await handler(api.shared(ResponsesHandlers), request, context)

    operation = Operation(summary=summary, unsupported=_UNSUPPORTED, optional_tags=OPTIONAL_TAGS, **types)
    return Endpoint(name=name, method=method, paths=(path,), handler=handle, operation=operation, smoke=smoke)


ENDPOINTS = (
    _endpoint(
        "responses",
        "POST",
        "/v1/responses",
        ResponsesHandlers.create,
        "A response",
        body=schema.CreateRequest,
        answer=answers.Response,
        events=answers.ResponseEvent,
        smoke=Smoke(body={"input": "Say hello.", "max_output_tokens": 8}, check=_check_response),
    ),
    # Before the paths that have an id in this place.
    _endpoint(
        "responses.input_tokens",
        "POST",
        "/v1/responses/input_tokens",
        ResponsesHandlers.count,
        "Number of a prompt's tokens",
        body=schema.CountRequest,
        answer=answers.InputTokens,
        smoke=Smoke(body={"input": "Say hello."}, check=_check_count),
    ),
    _endpoint(
        "responses.render",
        "POST",
        "/v1/responses/render",
        ResponsesHandlers.render,
        "Token ids and sampling parameters of a response, which is not made",
        body=schema.CreateRequest,
        answer=GenerateRequest,
        smoke=Smoke(body={"input": "Say hello.", "max_output_tokens": 8}, check=check_rendered),
    ),
    _endpoint(
        "responses.compact",
        "POST",
        "/v1/responses/compact",
        ResponsesHandlers.compact,
        "A conversation in fewer tokens: the user's messages, and a summary that the model writes",
        body=schema.CompactRequest,
        answer=answers.Compacted,
        example={"input": "Say hello."},
    ),
    _endpoint(
        "responses.retrieve",
        "GET",
        _ONE,
        ResponsesHandlers.retrieve,
        "A stored response, or one in the background",
        answer=answers.Response,
        events=answers.ResponseEvent,
        query=schema.RetrieveQuery,
    ),
    _endpoint(
        "responses.delete", "DELETE", _ONE, ResponsesHandlers.delete, "Delete a stored response", answer=answers.Deleted
    ),
    _endpoint(
        "responses.input_items",
        "GET",
        f"{_ONE}/input_items",
        ResponsesHandlers.input_items,
        "What a response was made from",
        answer=answers.ItemPage,
        query=schema.PageQuery,
    ),
    _endpoint(
        "responses.cancel",
        "POST",
        f"{_ONE}/cancel",
        ResponsesHandlers.cancel,
        "Cancel a response in the background",
        answer=answers.Response,
    ),
)
