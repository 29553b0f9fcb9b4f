"""/reset_prefix_cache and /tokenizer_info, as vLLM has them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.common.queries import parse_query
from openai_bls.api.endpoint import Endpoint, Operation
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.core.errors import NotFoundError, PermissionDeniedError
from openai_bls.output import detect
from openai_bls.pipeline.lifecycle.context import RequestContext


class Query(msgspec.Struct):
    """Query of both."""

    model: str | None = None
    """A served name."""


async def reset_prefix_cache(api: Api, request: Request, context: RequestContext) -> Response:
    """POST /reset_prefix_cache: of every engine, or of the one that the query parameter `model` names."""
    api.service.require_admin(context)
    name = parse_query(request.query_params, Query).model
    models = list(api.service.models) if name is None else [api.service.find(context, name).model]
    outcomes = await asyncio.gather(*(model.engine.reset_prefix_cache() for model in models), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return Response(status_code=200)


async def tokenizer_info(api: Api, request: Request, context: RequestContext) -> Response:
    """GET /tokenizer_info: tokenizer_config.json with the chat template, and what the model's prompts may hold."""
    name = parse_query(request.query_params, Query).model
    if not api.service.settings.tokenizer_info:
        raise NotFoundError("/tokenizer_info is off here: the setting 'tokenizer_info' of openai_bls turns it on.")
    model = api.service.find(context, name).model
    if model.tokenizer_dir is None:
        raise NotFoundError("The tokenizer of this model has no files here.")
    config = await asyncio.to_thread(_tokenizer_config, model.tokenizer_dir)
    return JsonResponse({**config, "input_modalities": model.info.input_modalities})


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    template = detect.chat_template(folder)
    return {"tokenizer_class": None, **found, **({"chat_template": template} if template else {})}


ENDPOINTS = (
    Endpoint(
        name="reset_prefix_cache",
        paths=("/reset_prefix_cache",),
        handler=reset_prefix_cache,
        has_guards=False,
        operation=Operation(
            summary="Make every engine, or that of `model`, forget its cached prompts",
            query=Query,
            errors=frozenset({PermissionDeniedError}),
        ),
    ),
    Endpoint(
        name="tokenizer_info",
        paths=("/tokenizer_info",),
        handler=tokenizer_info,
        method="GET",
        has_guards=False,
        operation=Operation(
            summary="tokenizer_config.json with the chat template, if the setting `tokenizer_info` is true",
            answer=dict[str, Any],
            query=Query,
        ),
    ),
)
