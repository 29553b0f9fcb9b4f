"""/v1/models and /v1/models/{model}."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.endpoint import Endpoint, Operation
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.core.media import Modality
from openai_bls.pipeline.lifecycle.context import RequestContext


class ModelCard(msgspec.Struct):
    """A served model, an alias of one, an adapter, or another Triton model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    """The base model of an adapter."""
    max_model_len: int | None
    task: str
    input_modalities: list[Modality] | None
    """Modalities of prompts; null where only another model knows."""


class ModelList(msgspec.Struct):
    """All of them."""

    object: Literal["list"]
    data: list[ModelCard]


async def _list(api: Api, request: Request, context: RequestContext) -> Response:
    models = api.service.models
    return JsonResponse({"object": "list", "data": [models.card(name) for name in models.names]})


async def _retrieve(api: Api, request: Request, context: RequestContext) -> Response:
    return JsonResponse(api.service.models.card(request.path_params["model"]))


ENDPOINTS = (
    Endpoint(
        name="models",
        method="GET",
        paths=("/v1/models",),
        handler=_list,
        operation=Operation(summary="Served models, their aliases and adapters", answer=ModelList),
    ),
    Endpoint(
        name="models.retrieve",
        method="GET",
        paths=("/v1/models/{model:path}",),
        handler=_retrieve,
        operation=Operation(summary="One of them", answer=ModelCard),
    ),
)
