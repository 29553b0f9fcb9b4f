"""/v1/models and /v1/models/{model}, in OpenAI's form and in Anthropic's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.endpoint import Endpoint, Operation
from openai_bls.api.http.handlers import Api, JsonResponse
from openai_bls.api.models import anthropic_models
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
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """What the server cannot do for the model, a sentence each; absent if there is nothing."""


class ModelList(msgspec.Struct):
    """All of them."""

    object: Literal["list"]
    data: list[ModelCard]
    failed: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Why engines of the server are not among them, by the Triton model; absent if all are."""


async def _list(api: Api, request: Request, context: RequestContext) -> Response:
    models = api.service.models

    def cards() -> list[dict[str, Any]]:
        return [models.card(name) for name in models.names]

    if anthropic_models.asked_for(request):
        return anthropic_models.answered(lambda: anthropic_models.listed(request, cards()))
    failed = {"failed": models.failed} if models.failed else {}
    return JsonResponse({"object": "list", "data": cards(), **failed})


async def _retrieve(api: Api, request: Request, context: RequestContext) -> Response:
    models, name = api.service.models, request.path_params["model"]
    if anthropic_models.asked_for(request):
        return anthropic_models.answered(lambda: anthropic_models.model(models.card(name)))
    return JsonResponse(models.card(name))


ENDPOINTS = (
    Endpoint(
        name="models",
        method="GET",
        paths=("/v1/models",),
        handler=_list,
        operation=Operation(
            summary="Served models, their aliases and adapters; with `anthropic-version` in Anthropic's form",
            answer=ModelList,
        ),
    ),
    Endpoint(
        name="models.retrieve",
        method="GET",
        paths=("/v1/models/{model:path}",),
        handler=_retrieve,
        operation=Operation(summary="One of them", answer=ModelCard),
    ),
)
