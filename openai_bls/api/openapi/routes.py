"""Routes of the API's description: /openapi.json, and the reference page at /docs."""

from __future__ import annotations

import asyncio
import functools

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openai_bls.api.common.encoding import encode
from openai_bls.api.openapi.document import GENERATES, document
from openai_bls.api.openapi.page import page
from openai_bls.api.pages.static_files import MEDIA_TYPES, StaticFile
from openai_bls.api.registry import BY_TITLE
from openai_bls.pipeline.service import Service

_State = tuple[int, tuple[tuple[str, tuple[str, ...]], ...]]
"""Models as the description has them: tokens of the longest context; name and tasks of each."""
_KEPT = 4
"""Descriptions that are kept: models and adapters come and go."""


def description_routes(service: Service) -> list[Route]:
    """The routes, which need no key. What they show is made in a thread, once for the models that are served."""

    @functools.lru_cache(maxsize=_KEPT)
    def description(state: _State) -> bytes:
        return encode(make(state))

    @functools.lru_cache(maxsize=_KEPT)
    def reference(state: _State) -> StaticFile:
        return StaticFile(page(make(state), dict(state[1])), MEDIA_TYPES[".html"])

    def state() -> _State:
        models = service.models
        return models.longest_context, tuple((name, tasks(name)) for name in models.names)

    def tasks(name: str) -> tuple[str, ...]:
        target = service.models.engine_target(name)
        if target is not None:
            own: str = target.model.info.task
            return (own, "embeddings") if own == GENERATES and target.model.supports("pooling") else (own,)
        task = service.models.task_model(name)
        return (task.task,) if task is not None else ()

    def make(state: _State) -> dict[str, object]:
        has_guards = service.guards is not None
        context, served = state
        return document(
            BY_TITLE,
            has_keys=service.api_keys.required,
            has_guards=has_guards,
            max_items=context,
            max_values=service.settings.max_request_values,
            served=dict(served),
            max_bytes=service.settings.max_request_bytes,
        )

    # Who asks meanwhile waits for what is being made, and does not have it made once more.
    making = asyncio.Lock()

    async def openapi(request: Request) -> Response:
        async with making:
            text = await asyncio.to_thread(description, state())
        return Response(text, media_type="application/json")

    async def docs(request: Request) -> Response:
        async with making:
            shown = await asyncio.to_thread(reference, state())
        return shown.response(request)

    routes = [Route("/openapi.json", openapi, methods=["GET"])]
    return [*routes, Route("/docs", docs, methods=["GET"])] if service.settings.http_ui else routes
