"""Serving of embeddings: pooled hidden states of an engine's model, or another Triton model."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.api.common.one_shot import admitted
from openai_bls.api.common.pooled import Inputs, pooled
from openai_bls.api.common.unsupported import Unsupported, refuse_unsupported
from openai_bls.api.tasks.embeddings.schema import (
    EmbeddingsAnswer,
    answer_of,
    encode_vector,
    parse_embeddings,
)
from openai_bls.api.tasks.embeddings.task_serving import embed_by_task
from openai_bls.core.errors import InvalidRequestError, ModelNotFoundError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import ServedModel, Target
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.registry import TaskModel

_OF_MODELS_THAT_GENERATE = {"pooling": Unsupported((), "the model pools as it was made to")}


async def embed(service: Service, context: RequestContext, body: dict[str, Any]) -> EmbeddingsAnswer:
    """A vector for each input, in their order; the engine works on them side by side.

    Raises:
        ApiError: the request is bad, the engine has no embeddings, or it failed.
    """
    request, texts, token_ids = parse_embeddings(body)
    target = await _find(service, context, request.model)
    if not isinstance(target, Target):
        return await embed_by_task(service, context, target, request, texts, token_ids)
    model = target.model
    embeds = model.info.task == "embeddings"
    if embeds:
        refuse_unsupported({"pooling": request.pooling}, _OF_MODELS_THAT_GENERATE)
        _check_dimensions(request.dimensions, model)
    inputs = Inputs(
        "input",
        "embed" if embeds else request.pooling or "last",
        token_ids,
        texts,
        add_special_tokens=request.add_special_tokens is not False,
        # Of the model's own size there is nothing to cut.
        dimensions=request.dimensions if embeds and request.dimensions != model.info.embedding_size else None,
        priority=request.priority or 0,
    )

    def read(vector: list[float]) -> str | msgspec.Raw:
        if request.dimensions not in (None, len(vector)):
            raise _other_size(request.dimensions, str(len(vector)))
        return encode_vector(vector, request.encoding_format)

    with admitted(service, context, target.name) as tally:
        vectors = await pooled(service, context, target, inputs, tally, read)
    return answer_of(vectors, request.model or model.info.model_name, tally.prompt_tokens)


async def _find(service: Service, context: RequestContext, name: str | None) -> Target | TaskModel:
    """The model that embeds: by default the default engine, if it does, else the only one that is for it."""
    target = service.models.engine_target(name)
    if target is None or (name is None and not _embeds(target.model)):
        try:
            found = await service.find_task(context, name, "embeddings")
        except ModelNotFoundError:
            # Listed are all models, since engines may have embeddings.
            target = service.find(context, name)
        else:
            return found
    context.model = target.name
    if not _embeds(target.model):
        raise InvalidRequestError(
            f"The engine of this model ({target.model.info.engine}) has no embeddings: `openai-bls build --task "
            "embed` makes a model that has.",
            param="model",
            code="unsupported_endpoint",
        )
    return target


def _embeds(model: ServedModel) -> bool:
    """True if the engine gives vectors of texts, by its task or beside generating."""
    return model.info.task == "embeddings" or (model.info.task == "generate" and model.supports("pooling"))


def _check_dimensions(size: int | None, model: ServedModel) -> None:
    """Refuse a size to which the vectors of a model that embeds cannot be cut."""
    info = model.info
    if size in (None, info.embedding_size):
        return
    sizes = info.matryoshka_dimensions
    if not model.supports("dimensions"):
        raise _other_size(size, str(info.embedding_size))
    if sizes and size not in sizes:
        raise _other_size(size, ", ".join(map(str, sizes)))
    if size is not None and size > info.embedding_size:
        raise _other_size(size, f"at most {info.embedding_size}")


def _other_size(size: int | None, sizes: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"'dimensions' is {size}: embeddings of this model have {sizes}. It may be left out, or be one of these.",
        param="dimensions",
        code="unsupported_parameter",
    )
