"""The /v1 application: its routes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls import __version__
from openai_bls.api.chat import routes as chat
from openai_bls.api.embeddings import routes as embeddings
from openai_bls.api.http import metrics_route
from openai_bls.api.http.handlers import Api, JsonResponse, error_response
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.messages import routes as messages
from openai_bls.api.responses import routes as responses
from openai_bls.api.tokenize import routes as tokenize
from openai_bls.core.errors import InvalidRequestError, NotFoundError
from openai_bls.pipeline.service import Service

_MODULES = (chat, embeddings, messages, responses, tokenize, metrics_route)


def create_app(service: Service, write_batcher: WriteBatcher) -> Starlette:
    """The application for `service`; `write_batcher` belongs to the event loop that both run on."""
    api = Api(service, write_batcher)
    return Starlette(
        routes=[route for module in _MODULES for route in module.routes(api)] + _server_routes(api),
        exception_handlers={HTTPException: _http_error},
    )


def _server_routes(api: Api) -> list[Route]:
    service = api.service

    async def list_models(request: Request) -> Response:
        return JsonResponse({"object": "list", "data": [service.models.card(name) for name in service.models.names]})

    async def retrieve_model(request: Request) -> Response:
        return JsonResponse(service.models.card(request.path_params["model"]))

    async def health(request: Request) -> Response:
        status = service.health
        return JsonResponse({"status": status}, status_code=200 if status == "ok" else 503)

    async def version(request: Request) -> Response:
        return JsonResponse({"version": __version__, "engine": service.models.default.info.version})

    return [
        Route("/v1/models", api.guarded(list_models), methods=["GET"]),
        Route("/v1/models/{model:path}", api.guarded(retrieve_model), methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """Paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}."
    if error.status_code == 404:
        return error_response(NotFoundError(message))
    response = error_response(InvalidRequestError(message))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response
