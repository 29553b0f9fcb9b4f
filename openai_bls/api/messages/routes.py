"""/v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.common.one_shot import prompt_token_ids
from openai_bls.api.http.handlers import Api, Handler, JsonResponse, unless_disconnected
from openai_bls.api.messages.conversion import Converted, convert, decode
from openai_bls.api.messages.errors import OVERLOADED, error_body
from openai_bls.api.messages.schema import MessagesRequest, PromptRequest
from openai_bls.api.messages.writers import StreamedMessage, WholeMessage
from openai_bls.core.errors import ApiError


def routes(api: Api) -> list[Route]:
    """The routes of both endpoints."""
    return [
        Route("/v1/messages", _guarded(api, _create(api)), methods=["POST"]),
        Route("/v1/messages/count_tokens", _guarded(api, _count_tokens(api)), methods=["POST"]),
    ]


def _guarded(api: Api, handler: Handler) -> Handler:
    return api.guarded(handler, answer_error=_answer_error, id_header="request-id")


def _answer_error(error: ApiError, request: Request) -> Response:
    body = {**error_body(error), "request_id": request.state.request_id}
    if error.status == 503:
        return JsonResponse(body, status_code=OVERLOADED, headers={"Retry-After": "1"})
    return JsonResponse(body, status_code=error.status)


def _converted(api: Api, request: PromptRequest) -> Converted:
    model = api.service.models.find(request.model).model
    return convert(request, thinks=model.formats.reasoning is not None)


def _create(api: Api) -> Handler:
    service = api.service

    async def create(request: Request) -> Response:
        body = decode(await api.body(request), MessagesRequest)
        valid, omit_thinking = _converted(api, body)
        if not valid.stream:
            completing = service.complete(valid, lambda _: WholeMessage(body.model, omit_thinking=omit_thinking))
            return JsonResponse(await unless_disconnected(request, completing))
        stream = api.event_stream(ending=b"")
        generation = await service.begin(
            valid, lambda _: StreamedMessage(stream, body.model, omit_thinking=omit_thinking)
        )
        return await api.streamed(request, stream, generation, _answer_error)

    return create


def _count_tokens(api: Api) -> Handler:
    async def count(request: Request) -> Response:
        body = decode(await api.body(request), PromptRequest)
        valid = _converted(api, body).valid
        tokens = await unless_disconnected(request, prompt_token_ids(api.service, valid, "messages.count_tokens"))
        return JsonResponse({"input_tokens": len(tokens)})

    return count
