"""Prompts that an engine pools into numbers: tokenization, admission, and the engine's work on all of a request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from openai_bls.api.common.engine_work import EngineWork
from openai_bls.api.common.one_shot import Tally
from openai_bls.core.engine_types import GenerationRequest, PromptRequest, TokenDelta
from openai_bls.core.errors import InvalidRequestError, UnsupportedByModelError
from openai_bls.pipeline.admission.ticket import Ticket
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import EngineClient, ServedModel, Target
from openai_bls.pipeline.preparation.prompts import check_token_ids, element
from openai_bls.pipeline.service import Service

T = TypeVar("T")

_MOST_IN_FLIGHT = 128
"""Inputs of one request that the engine has at a time: some passes' worth."""


class Inputs(msgspec.Struct, frozen=True):
    """What an engine is to pool: token ids, or texts, pairs of texts or one chat that are to be tokenized."""

    param: str
    """Field that they come from."""
    pooling: Literal["last", "mean", "embed", "classify"]
    token_ids: Sequence[list[int]] = ()
    texts: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    chat: PromptRequest | None = None
    add_special_tokens: bool | None = True
    dimensions: int | None = None
    use_activation: bool | None = None
    priority: int = 0


async def pooled(
    service: Service,
    context: RequestContext,
    target: Target,
    inputs: Inputs,
    tally: Tally,
    read: Callable[[list[float]], T],
) -> list[T]:
    """What `read` makes of each input's numbers, in their order; the engine works on them side by side.

    Args:
        service: service that takes the request.
        context: context of the request, which is admitted.
        target: model of the request.
        inputs: what is to be pooled.
        tally: tokens of the request.
        read: called with each input's numbers as they come; raises `ApiError`.

    Raises:
        ApiError: an input is bad, or the engine failed.
    """
    began_at = time.monotonic()
    model = target.model
    await model.engine.ready()
    prompts, types = await _tokenized(inputs, model, context.key)
    # Those that preprocessing gives may be many more, and are the engine's to check.
    check_token_ids(list(inputs.token_ids), model, inputs.param)
    _check(prompts, inputs.param, model)
    tokens = sum(len(prompt) for prompt in prompts)
    deadline = context.deadline(None, began_at)
    # Inputs take no places in the engine's batch, whose steps go on between their passes.
    ticket = service.admission(model).ticket(context.key, tokens, 0, 1, deadline, inputs.priority)
    tally.lease.take_tokens(tokens, tokens)
    # What is refused above has used none.
    tally.prompt_tokens += tokens
    requests = [
        GenerationRequest(
            request_id=0,
            prompt_token_ids=prompt,
            max_tokens=0,
            lora_name=target.lora_name,
            pooling=inputs.pooling,
            dimensions=inputs.dimensions,
            use_activation=inputs.use_activation,
            compressed_token_type_ids=types[index] if types else None,
        )
        for index, prompt in enumerate(prompts)
    ]
    return await _Work(model.engine, requests, ticket, read).done()


async def _tokenized(inputs: Inputs, model: ServedModel, key: str) -> tuple[list[list[int]], list[int]]:
    """Token ids of the inputs, and where the second text of each pair begins; empty where that is not told."""
    if inputs.token_ids:
        return list(inputs.token_ids), []
    if inputs.chat is not None:
        return (await model.tokenize(inputs.chat, key=key)).prompt_token_ids, []
    if not inputs.pairs:
        request = PromptRequest(prompts=list(inputs.texts), add_special_tokens=inputs.add_special_tokens)
        return (await model.tokenize(request, inputs.param, key=key)).prompt_token_ids, []
    result = await model.tokenize(PromptRequest(pairs=list(inputs.pairs)), inputs.param, key=key)
    if len(result.prompt_token_ids) != len(inputs.pairs):
        raise UnsupportedByModelError("The preprocessing of this model takes no pairs of texts.")
    types = result.compressed_token_type_ids if model.supports("compressed_token_type_ids") else []
    return result.prompt_token_ids, types


def _check(prompts: list[list[int]], param: str, model: ServedModel) -> None:
    limit = model.info.max_model_len
    for index, prompt in enumerate(prompts):
        place = element(param, index, prompts)
        if not prompt:
            raise InvalidRequestError(f"'{place}' holds nothing.", param=place)
        if len(prompt) > limit:
            raise InvalidRequestError(
                f"This model's maximum context length is {limit} tokens; '{place}' has {len(prompt)}.",
                param=place,
                code="context_length_exceeded",
            )


class _Work(EngineWork[T]):
    """The engine's work on all inputs of one request.

    It has some of them at a time, so that another request's need not wait for all; the shortest come first, since
    inputs of one length share a pass best.
    """

    def __init__(
        self, engine: EngineClient, requests: list[GenerationRequest], ticket: Ticket, read: Callable[[list[float]], T]
    ) -> None:
        order = sorted(range(len(requests)), key=lambda index: len(requests[index].prompt_token_ids))
        super().__init__(engine, requests, ticket, order)
        self._read = read

    def submit(self, count: int) -> None:
        """Hand the first inputs to the engine, of whose places they have one together."""
        super().submit(_MOST_IN_FLIGHT)

    def completion_tokens(self) -> int:
        """None are generated."""
        return 0

    def result(self, delta: TokenDelta) -> T | None:
        """What is read of an input's numbers."""
        # Here and not at the end: thousands of vectors at once would hold up other requests' tokens.
        return None if delta.embedding is None else self._read(delta.embedding)

    def ended_one(self) -> None:
        """Hand the next input to the engine."""
        super().submit(1)
