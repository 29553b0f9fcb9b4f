"""Serving of embeddings: pooled hidden states of an engine's model, or another Triton model."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from typing import Any

import msgspec

from openai_bls.api.common.one_shot import admitted
from openai_bls.api.tasks.embeddings.schema import (
    EmbeddingsAnswer,
    EmbeddingsBody,
    answer_of,
    encode_vector,
    parse_embeddings,
)
from openai_bls.api.tasks.embeddings.task_serving import embed_by_task
from openai_bls.core.engine_types import GenerationRequest, PromptRequest, TokenDelta
from openai_bls.core.errors import ApiError, EngineError, InvalidRequestError, ModelNotFoundError, engine_failure
from openai_bls.pipeline.admission.ticket import Ticket
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import ServedModel, Target
from openai_bls.pipeline.preparation.prepare import check_token_ids, element
from openai_bls.pipeline.service import Service

# Inputs of one request that the engine has at a time: some passes' worth.
_MOST_IN_FLIGHT = 128


async def embed(service: Service, context: RequestContext, body: dict[str, Any]) -> EmbeddingsAnswer:
    """A vector of length 1 for each input, in their order; the engine works on them side by side.

    Raises:
        ApiError: the request is bad, the engine has no embeddings, or it failed.
    """
    request, texts, token_ids = parse_embeddings(body)
    target = service.models.engine_target(request.model)
    if target is None or (request.model is None and not target.model.supports("pooling")):
        try:
            task = await service.find_task(context, request.model, "embeddings")
        except ModelNotFoundError:
            # Listed are all models, since engines may have embeddings.
            target = service.find(context, request.model)
        else:
            return await embed_by_task(service, context, task, request, texts, token_ids)
    model = target.model
    context.model = target.name
    if not model.supports("pooling"):
        raise InvalidRequestError(
            f"The engine of this model ({model.info.engine}) has no embeddings.",
            param="model",
            code="unsupported_endpoint",
        )
    began_at = time.monotonic()
    with admitted(service, context, target.name) as tally:
        await model.engine.ready()
        prompts = token_ids if token_ids else await _tokenize(request, texts, model, context.key)
        _check(prompts, model)
        tokens = sum(len(prompt) for prompt in prompts)
        deadline = context.deadline(None, began_at)
        # Inputs take no places in the engine's batch, whose steps go on between their passes.
        ticket = service.admission(model).ticket(context.key, tokens, 0, 1, deadline, request.priority or 0)
        tally.lease.take_tokens(tokens, tokens)
        # What is refused above has used none.
        tally.prompt_tokens = tokens
        vectors = await _Work(request, target, prompts, ticket).vectors()
    return answer_of(vectors, request.model or model.info.model_name, tokens)


async def _tokenize(request: EmbeddingsBody, texts: list[str], model: ServedModel, key: str) -> list[list[int]]:
    prompts = PromptRequest(prompts=texts, add_special_tokens=request.add_special_tokens is not False)
    return (await model.tokenize(prompts, "input", key=key)).prompt_token_ids


def _check(prompts: list[list[int]], model: ServedModel) -> None:
    check_token_ids(prompts, model, "input")
    limit = model.info.max_model_len
    for index, prompt in enumerate(prompts):
        place = element("input", index, prompts)
        if not prompt:
            raise InvalidRequestError(f"'{place}' holds nothing.", param=place)
        if len(prompt) > limit:
            raise InvalidRequestError(
                f"This model's maximum context length is {limit} tokens; '{place}' has {len(prompt)}.",
                param=place,
                code="context_length_exceeded",
            )


class _Work:
    """The engine's work on all inputs of one request.

    It has some of them at a time, so that another request's need not wait for all; the shortest come first, since
    inputs of one length share a pass best.
    """

    def __init__(self, request: EmbeddingsBody, target: Target, prompts: list[list[int]], ticket: Ticket) -> None:
        self._request = request
        self._target = target
        self._engine = target.model.engine
        self._prompts = prompts
        self._order = iter(sorted(range(len(prompts)), key=lambda index: len(prompts[index])))
        self._in_flight: dict[int, int] = {}
        """Index of an input that the engine has, and the id of its request there."""
        self._ticket = ticket
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._encoded: dict[int, str | msgspec.Raw] = {}

    async def vectors(self) -> list[str | msgspec.Raw]:
        """All vectors, encoded, in the order of the prompts."""
        try:
            self._ticket.enter(self)
            await self._done
        finally:
            for request_id in self._in_flight.values():
                self._engine.cancel(request_id)
            self._ticket.leave(0, done=len(self._encoded) == len(self._prompts))
        return [self._encoded[index] for index in range(len(self._prompts))]

    def submit(self, count: int) -> None:
        """Hand the first inputs to the engine, of whose places they have one together."""
        for index in itertools.islice(self._order, _MOST_IN_FLIGHT):
            self._submit(index)

    def _submit(self, index: int) -> None:
        request = GenerationRequest(
            request_id=self._engine.new_request_id(),
            prompt_token_ids=self._prompts[index],
            max_tokens=0,
            lora_name=self._target.lora_name,
            pooling=self._request.pooling or "last",
        )
        self._in_flight[index] = request.request_id
        self._engine.submit(request, functools.partial(self._take, index))

    def fail(self, error: ApiError) -> None:
        """End with `error`."""
        if not self._done.done():
            self._done.set_exception(error)

    def _take(self, index: int, delta: TokenDelta) -> None:
        if self._done.done():
            return
        if delta.finish_reason is not None:
            del self._in_flight[index]
        failure = engine_failure(delta, cancelled="The engine is shutting down.") or self._misfit(delta)
        if failure is not None:
            self._done.set_exception(failure)
            return
        assert delta.embedding is not None
        # Here and not at the end: thousands of vectors at once would hold up other requests' tokens.
        self._encoded[index] = encode_vector(delta.embedding, self._request.encoding_format)
        if len(self._encoded) == len(self._prompts):
            self._done.set_result(None)
            return
        following = next(self._order, None)
        if following is not None:
            self._submit(following)

    def _misfit(self, delta: TokenDelta) -> ApiError | None:
        """The fault of an answer whose engine did not fail; None if it has none."""
        if delta.embedding is None:
            return EngineError("The engine sent no embedding.")
        size, wanted = len(delta.embedding), self._request.dimensions
        if wanted is not None and wanted != size:
            return InvalidRequestError(
                f"'dimensions' is {wanted}: the embeddings of this model have {size} and cannot be shortened. "
                f"It may be left out, or be {size}.",
                param="dimensions",
                code="unsupported_parameter",
            )
        return None
