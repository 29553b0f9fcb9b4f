"""Handlers of the endpoints that answer at once."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.common.bodies import json_object
from openai_bls.api.common.one_shot import OneShot
from openai_bls.api.http.handlers import Api, Handler, JsonResponse, unless_disconnected


def handler(api: Api, answer: OneShot) -> Handler:
    """A handler, guarded, that answers with what `answer` makes of the request's body."""

    async def handle(request: Request) -> Response:
        body = json_object(await api.body(request))
        return JsonResponse(await unless_disconnected(request, answer(api.service, body)))

    return api.guarded(handle)
