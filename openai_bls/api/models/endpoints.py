"""/v1/models and /v1/models/{model}."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.endpoint import Endpoint
from openai_bls.api.http.handlers import Api, Handler, JsonResponse


def _list(api: Api) -> Handler:
    async def handle(request: Request) -> Response:
        models = api.service.models
        return JsonResponse({"object": "list", "data": [models.card(name) for name in models.names]})

    return handle


def _retrieve(api: Api) -> Handler:
    async def handle(request: Request) -> Response:
        return JsonResponse(api.service.models.card(request.path_params["model"]))

    return handle


ENDPOINTS = (
    Endpoint(name="models", method="GET", paths=("/v1/models",), handler=_list),
    Endpoint(name="models.retrieve", method="GET", paths=("/v1/models/{model:path}",), handler=_retrieve),
)
