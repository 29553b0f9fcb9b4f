"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.chat import serving
from openai_bls.api.chat.validation import Endpoint, parse_json
from openai_bls.api.http.handlers import Api, Handler, JsonResponse, unless_disconnected


def routes(api: Api) -> list[Route]:
    """The routes of both endpoints."""
    return [
        Route("/v1/chat/completions", api.guarded(_handler(api, "chat.completions")), methods=["POST"]),
        Route("/v1/completions", api.guarded(_handler(api, "completions")), methods=["POST"]),
    ]


def _handler(api: Api, endpoint: Endpoint) -> Handler:
    async def generate(request: Request) -> Response:
        valid = parse_json(endpoint, await api.body(request))
        if not valid.stream:
            return JsonResponse(await unless_disconnected(request, serving.answer(api.service, valid)))
        stream = api.event_stream()
        return await api.streamed(request, stream, await serving.stream(api.service, valid, stream))

    return generate
