"""ASGI application of /v1: every registered endpoint, and the routes of probes and scrapes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls import __version__
from openai_bls.api.http.handlers import Api, JsonResponse, error_response
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.registry import ENDPOINTS
from openai_bls.core.errors import InvalidRequestError, NotFoundError
from openai_bls.pipeline.metrics import CONTENT_TYPE
from openai_bls.pipeline.service import Service


def create_app(service: Service, write_batcher: WriteBatcher) -> Starlette:
    """The application for `service`; `write_batcher` belongs to the event loop that both run on."""
    api = Api(service, write_batcher)
    return Starlette(
        routes=[route for endpoint in ENDPOINTS for route in endpoint.routes(api)] + _server_routes(service),
        exception_handlers={HTTPException: _http_error},
    )


def _server_routes(service: Service) -> list[Route]:
    """The routes of probes and scrapes, without authentication."""

    async def health(request: Request) -> Response:
        status = await service.health()
        return JsonResponse(
            {"status": status, "models": service.readiness.states}, status_code=200 if status == "ok" else 503
        )

    async def live(request: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def version(request: Request) -> Response:
        return JsonResponse({"version": __version__, "engine": service.models.default.info.version})

    async def metrics(request: Request) -> Response:
        return Response(await service.metrics.scrape(), media_type=CONTENT_TYPE)

    paths = {"/health": health, "/health/live": live, "/health/ready": health, "/version": version, "/metrics": metrics}
    return [Route(path, handler, methods=["GET"]) for path, handler in paths.items()]


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
