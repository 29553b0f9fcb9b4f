"""Serving of embeddings by another Triton model of the server."""

from __future__ import annotations

import numpy as np

from openai_bls.api.common.large_bodies import parsed
from openai_bls.api.common.one_shot import admitted
from openai_bls.api.common.unsupported import Unsupported, refuse_unsupported
from openai_bls.api.tasks.embeddings.schema import (
    EmbeddingsAnswer,
    EmbeddingsBody,
    answer_of,
    encode_vector,
)
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.calls import integer_rows, text_rows
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array

_OF_ENGINES = {
    "pooling": Unsupported((), "the model pools as it was made to"),
    "add_special_tokens": Unsupported((), "the model tokenizes as it was made to"),
    "priority": Unsupported((0,), "the model's requests wait in Triton, in the order in which they come"),
}


async def embed_by_task(
    service: Service,
    context: RequestContext,
    model: TaskModel,
    request: EmbeddingsBody,
    texts: list[str],
    token_ids: list[list[int]],
) -> EmbeddingsAnswer:
    """The model's vector for each input, in their order.

    Raises:
        ApiError: the model does not take such a request, or failed.
    """
    fields = {name: getattr(request, name) for name in _OF_ENGINES}
    refuse_unsupported(fields, _OF_ENGINES)
    role = "token_ids" if token_ids else "text"
    if role not in model.inputs:
        raise InvalidRequestError(
            f"The model {model.name!r} takes {'text, no token ids' if token_ids else 'token ids, no text'}.",
            param="input",
        )
    if not all(token_ids or texts):
        raise InvalidRequestError("'input' holds an empty string or array.", param="input")
    with admitted(service, context, model.name) as tally:
        call = service.task_call(model, context.key, "input")
        outputs = await call.run({role: integer_rows(token_ids) if token_ids else text_rows(texts)})
        # The ids are counted; how many tokens a text is, only the model can tell.
        tally.prompt_tokens = call.prompt_tokens or sum(len(row) for row in token_ids)
        vectors = [_sized(vector, request.dimensions, model) for vector in outputs["embedding"]]
        # On a thread, for thousands of vectors at once would hold up other requests' tokens.
        encoded = await parsed(
            lambda: [encode_vector(vector.tolist(), request.encoding_format) for vector in vectors],
            large=True,
            key=context.key,
        )
    return answer_of(encoded, model.name, tally.prompt_tokens)


def _sized(vector: Array, wanted: int | None, model: TaskModel) -> Array:
    """A vector of the size that was asked for."""
    size = len(vector)
    if wanted is None or wanted == size:
        return vector
    if not model.matryoshka or wanted > size:
        able = f"be at most {size}" if model.matryoshka else f"be {size}"
        cut = "" if model.matryoshka else " and cannot be shortened"
        raise InvalidRequestError(
            f"'dimensions' is {wanted}: the embeddings of this model have {size}{cut}. It may be left out, or {able}.",
            param="dimensions",
            code="unsupported_parameter",
        )
    cut_vector = vector[:wanted]
    length = float(np.linalg.norm(cut_vector))
    return cut_vector / np.float32(length) if length > 0 else cut_vector
