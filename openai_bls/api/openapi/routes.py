"""Routes of the API's description: /openapi.json, and the reference page at /docs."""

from __future__ import annotations

import asyncio
import functools

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.common.encoding import encode
from openai_bls.api.openapi.document import document
from openai_bls.api.openapi.page import page
from openai_bls.api.pages.static_files import MEDIA_TYPES, StaticFile
from openai_bls.api.registry import BY_TITLE
from openai_bls.pipeline.service import Service


def description_routes(service: Service) -> list[Route]:
    """The routes, which need no key. What they show is made in a thread, once for each longest context."""

    @functools.cache
    def description(context: int) -> bytes:
        return encode(make(context))

    @functools.cache
    def reference(context: int) -> StaticFile:
        return StaticFile(page(make(context)), MEDIA_TYPES[".html"])

    def make(context: int) -> dict[str, object]:
        has_guards = service.guards is not None
        return document(
            BY_TITLE,
            has_keys=service.api_keys.required,
            has_guards=has_guards,
            max_items=context,
            max_values=service.settings.max_request_values,
            max_bytes=service.settings.max_request_bytes,
        )

    async def openapi(request: Request) -> Response:
        text = await asyncio.to_thread(description, service.models.longest_context)
        return Response(text, media_type="application/json")

    async def docs(request: Request) -> Response:
        return (await asyncio.to_thread(reference, service.models.longest_context)).response(request)

    routes = [Route("/openapi.json", openapi, methods=["GET"])]
    return [*routes, Route("/docs", docs, methods=["GET"])] if service.settings.http_ui else routes
