"""/reset_prefix_cache and /tokenizer_info, as vLLM has them; /server_info and /model_info, as SGLang has them."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_bls import __version__
from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.common.queries import parse_query
from openai_bls.api.endpoint import ApiHandler, Endpoint, Operation
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.core.errors import NotFoundError, PermissionDeniedError
from openai_bls.output import detect
from openai_bls.pipeline.lifecycle.context import RequestContext


class Query(msgspec.Struct):
    """Query of all four."""

    model: str | None = None
    """A served name."""


class ServerInfo(msgspec.Struct):
    """A server with one engine, in the fields by which SGLang's router knows it."""

    served_model_name: str
    """Name that requests give as `model`."""
    context_length: int
    """Tokens of a prompt and its answer."""
    max_running_requests: int
    """Sequences that the engine runs at once."""
    version: str
    """Version of openai_bls."""


class ModelInfo(msgspec.Struct):
    """What a model takes and gives, in SGLang's fields."""

    has_image_understanding: bool
    """Prompts may hold images."""
    has_audio_understanding: bool = False
    """Always false."""
    is_generation: bool = True
    """Always true."""


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
    config = await parsed(partial(_tokenizer_config, model.tokenizer_dir), large=True, key=context.key)
    return JsonResponse({**config, "input_modalities": model.info.input_modalities})


async def server_info(api: Api, request: Request, context: RequestContext) -> Response:
    """GET /server_info: of the default engine, or of the one that the query parameter `model` names."""
    target = api.service.find(context, parse_query(request.query_params, Query).model)
    info = target.model.info
    return JsonResponse(ServerInfo(target.name, info.max_model_len, info.max_batch_size, __version__))


async def model_info(api: Api, request: Request, context: RequestContext) -> Response:
    """GET /model_info, for the same engine."""
    info = api.service.find(context, parse_query(request.query_params, Query).model).model.info
    return JsonResponse(ModelInfo("image" in info.input_modalities))


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    template = detect.chat_template(folder)
    return {"tokenizer_class": None, **found, **({"chat_template": template} if template else {})}


def _endpoint(method: str, name: str, handler: ApiHandler, summary: str, **more: Any) -> Endpoint:
    operation = Operation(summary=summary, query=Query, **more)
    return Endpoint(
        name=name, method=method, paths=(f"/{name}",), handler=handler, operation=operation, has_guards=False
    )


ENDPOINTS = (
    _endpoint(
        "POST",
        "reset_prefix_cache",
        reset_prefix_cache,
        "Make every engine, or that of `model`, forget its cached prompts",
        errors=frozenset({PermissionDeniedError}),
    ),
    _endpoint(
        "GET",
        "tokenizer_info",
        tokenizer_info,
        "tokenizer_config.json with the chat template, if the setting `tokenizer_info` is true",
        answer=dict[str, Any],
    ),
    _endpoint("GET", "server_info", server_info, "What SGLang's router asks of a server", answer=ServerInfo),
    _endpoint("GET", "model_info", model_info, "What SGLang's router asks of a model", answer=ModelInfo),
)
