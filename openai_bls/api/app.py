"""ASGI application of /v1: every registered endpoint, and the routes of probes, scrapes and pages."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_bls import __version__
from openai_bls.api.batches.files import image_path, shared_folder
from openai_bls.api.http.handlers import Api, JsonResponse, error_response
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.openapi.routes import description_routes
from openai_bls.api.pages.routes import page_routes
from openai_bls.api.registry import ENDPOINTS
from openai_bls.core.errors import EngineError, InvalidRequestError, NotFoundError
from openai_bls.pipeline.metrics.metrics import CONTENT_TYPE
from openai_bls.pipeline.service import Service


def create_app(service: Service, write_batcher: WriteBatcher) -> Starlette:
    """The application for `service`; `write_batcher` belongs to the event loop that both run on."""
    api = Api(service, write_batcher)
    if service.settings.batches_dir:
        service.images.uploaded = partial(image_path, api.shared(shared_folder))
    front_end, settings = service.front_end, service.settings
    port = None if front_end is None else front_end.port
    pages = page_routes(port, settings.max_audio_seconds) if settings.http_ui else []
    others = [*_server_routes(service), *description_routes(service), *pages]
    endpoints = [route for endpoint in ENDPOINTS for route in endpoint.routes(api)]
    exact = [route for route in endpoints if not route.param_convertors]
    with_ids = [route for route in endpoints if route.param_convertors]
    # A word that is a path is no id: another method than its own is not allowed, instead of an object not being there.
    words = {route.path for route in exact for other in with_ids if other.path_regex.match(route.path)}
    closed = [Route(path, _NotAllowed()) for path in sorted(words)]
    app = Starlette(
        routes=[*exact, *closed, *with_ids, *others],
        middleware=[Middleware(_WithoutSlash)],
        exception_handlers={HTTPException: _http_error, Exception: _failure},
    )
    # Done by the middleware: a redirection would name the scheme and the host of this side of a proxy.
    app.router.redirect_slashes = False
    app.state.endpoints = {(method, route.path): route.app for route in exact for method in route.methods or ()}
    app.state.unobserved = re.compile("|".join(route.path_regex.pattern for route in others))
    api.app = app
    app.state.background = [partial(e.background, api) for e in ENDPOINTS if e.background is not None]
    return app


def _server_routes(service: Service) -> list[Route]:
    """The routes of probes and scrapes, without authentication."""

    async def health(request: Request) -> Response:
        status = await service.health()
        answer: dict[str, Any] = {"status": status, "models": service.readiness.states}
        if service.models.failed:
            answer["failed"] = service.models.failed
        return JsonResponse(answer, status_code=200 if status == "ok" else 503)

    async def ping(request: Request) -> Response:
        return Response(status_code=200 if await service.health() == "ok" else 503)

    async def load(request: Request) -> Response:
        return JsonResponse({"server_load": service.in_progress})

    async def live(request: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def version(request: Request) -> Response:
        return JsonResponse({"version": __version__, "engine": next(iter(service.models)).info.version})

    async def metrics(request: Request) -> Response:
        return Response(await service.metrics.scrape(), media_type=CONTENT_TYPE)

    paths = {"/health": health, "/health/live": live, "/health/ready": health, "/version": version, "/metrics": metrics}
    routes = [Route(path, handler, methods=["GET"]) for path, handler in (*paths.items(), ("/load", load))]
    # SageMaker's, which asks in either way.
    return [*routes, Route("/ping", ping, methods=["GET", "POST"])]


class _WithoutSlash:
    """ASGI middleware that serves a path with a slash at its end like the one without."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)


class _NotAllowed:
    """ASGI application of a path for all methods that are not its own: no function, which would answer GET alone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise HTTPException(405)


async def _failure(request: Request, error: Exception) -> Response:
    """What fails outside the endpoints, which tell of their failures themselves."""
    return error_response(EngineError("The server had an error; see its log."))


async def _http_error(request: Request, error: Exception) -> Response:
    """Paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}."
    if error.status_code == 404:
        return error_response(NotFoundError(message))
    response = error_response(InvalidRequestError(message))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        # Starlette names those of the first route alone that has this path.
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        own = [route for route in routes if not route.param_convertors] or routes
        response.headers["allow"] = ", ".join(sorted({method for route in own for method in route.methods or ()}))
    return response
