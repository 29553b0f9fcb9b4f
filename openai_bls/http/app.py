"""The /v1 application: routes, authentication, error bodies, server-sent events."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls import __version__
from openai_bls.errors import (
    ApiError,
    AuthenticationError,
    EngineError,
    InvalidRequestError,
    NotFoundError,
)
from openai_bls.http.sse import EventStream, disconnected
from openai_bls.pacer import Pacer
from openai_bls.protocol.requests import Endpoint, parse_json
from openai_bls.protocol.responses import encode
from openai_bls.service import Service

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class JsonResponse(Response):
    """JSON by the same encoder as everything else."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact JSON in UTF-8."""
        return encode(content)


def error_response(error: ApiError) -> JsonResponse:
    """The OpenAI error body with its status."""
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JsonResponse(error.body(), status_code=error.status, headers=headers)


def create_app(service: Service, pacer: Pacer) -> Starlette:
    """The application for `service`; `pacer` belongs to the event loop that both run on."""
    settings = service.settings

    def guarded(handler: Handler) -> Handler:
        """Authenticate, and turn every exception into an OpenAI error body."""

        async def endpoint(request: Request) -> Response:
            try:
                _authenticate(request, settings.api_key)
                return await handler(request)
            except ApiError as error:
                return error_response(error)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception:
                logger.exception("%s %s failed", request.method, request.url.path)
                return error_response(EngineError("The server had an error; see its log."))

        return endpoint

    async def chat_completions(request: Request) -> Response:
        return await _generate(service, pacer, request, "chat.completions")

    async def completions(request: Request) -> Response:
        return await _generate(service, pacer, request, "completions")

    async def list_models(request: Request) -> Response:
        cards = [service.model_card(name) for name in service.model_names]
        return JsonResponse({"object": "list", "data": cards})

    async def retrieve_model(request: Request) -> Response:
        return JsonResponse(service.model_card(request.path_params["model"]))

    async def health(request: Request) -> Response:
        status = 503 if service.draining else 200
        return JsonResponse({"status": "draining" if service.draining else "ok"}, status_code=status)

    async def version(request: Request) -> Response:
        return JsonResponse({"version": __version__, "engine": service.info.version})

    async def http_error(request: Request, error: Exception) -> Response:
        """Paths and methods that do not exist."""
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail.lower()}."
        if error.status_code == 404:
            return error_response(NotFoundError(message))
        response = error_response(InvalidRequestError(message))
        response.status_code = error.status_code
        response.headers.update(error.headers or {})
        return response

    return Starlette(
        routes=[
            Route("/v1/chat/completions", guarded(chat_completions), methods=["POST"]),
            Route("/v1/completions", guarded(completions), methods=["POST"]),
            Route("/v1/models", guarded(list_models), methods=["GET"]),
            Route("/v1/models/{model:path}", guarded(retrieve_model), methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/version", version, methods=["GET"]),
        ],
        exception_handlers={HTTPException: http_error},
    )


def _authenticate(request: Request, api_key: str) -> None:
    if not api_key:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), api_key.encode()):
        raise AuthenticationError("Incorrect or missing API key: send it as 'Authorization: Bearer <key>'.")


async def _read_body(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            error = InvalidRequestError(f"The request body is larger than {limit} bytes.")
            error.status = 413
            raise error
        chunks.append(chunk)
    return b"".join(chunks)


async def _generate(service: Service, pacer: Pacer, request: Request, endpoint: Endpoint) -> Response:
    body = await _read_body(request, service.settings.max_request_bytes)
    valid = parse_json(endpoint, body)
    if not valid.stream:
        answer = await _unless_disconnected(request, service.answer(valid))
        return JsonResponse(answer)
    stream = EventStream(service.settings.keep_alive_interval_s, pacer)
    generation = await service.stream(valid, stream)
    stream.on_disconnect = generation.cancel
    # An error before the first token still gets its own status.
    error = await _unless_disconnected(request, stream.first())
    if error is not None:
        return error_response(error)
    return stream


async def _unless_disconnected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`; if the client goes away first, `work` is cancelled.

    Raises:
        ClientDisconnect: the client has gone.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for future in (task, gone):
            if not future.done():
                future.cancel()
