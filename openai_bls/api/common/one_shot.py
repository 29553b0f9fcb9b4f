"""One-shot endpoints, which generate nothing: admission, a record of each request, prompt token ids."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.core.request import ValidRequest
from openai_bls.core.request_record import Outcome, Progress
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.admission.key_budgets import Lease
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import ServedModel, Target
from openai_bls.pipeline.preparation.checks import check
from openai_bls.pipeline.preparation.images import named_images, with_sizes
from openai_bls.pipeline.service import Service, within

logger = logging.getLogger(__name__)

OneShot = Callable[
    [Service, RequestContext, dict[str, Any]], Coroutine[Any, Any, msgspec.Struct | Sequence[msgspec.Struct]]
]
"""Maker of the whole answer to a request body; raises ApiError. Cancelling it cancels the work."""


@dataclass
class Tally:
    """Tokens of a request up to now."""

    lease: Lease
    """Part of the key's budget that the request has."""
    prompt_tokens: int = 0
    """Given to the engine."""
    usage: Usage | None = None
    """Instead of it, where a model tells it."""
    finish_reasons: list[FinishReason] = field(default_factory=list)
    first_token_at: float | None = None
    """`time.monotonic()` of the first chunk of a stream."""


@contextmanager
def admitted(service: Service, context: RequestContext, model: str) -> Iterator[Tally]:
    """One request in progress for as long as the block lasts.

    Args:
        service: service that takes the request.
        context: context of the request.
        model: name of the request's model in the metrics.

    Raises:
        OverloadedError: the server takes no more.
        RateLimitError: it is one too many.
        AuthenticationError: its key was taken out meanwhile.
        EngineError: the block failed unexpectedly; the log says how.
    """
    context.model = model
    service.check_admission(context.key)
    with service.enter(context) as life:
        life.taken(model)
        tally = Tally(lease=life.lease)

        def ended(outcome: Outcome) -> None:
            usage = tally.usage or Usage.of(tally.prompt_tokens, 0)
            life.ended(outcome, Progress(tally.finish_reasons, usage, tally.first_token_at))

        try:
            with service.while_key_lasts(context.key):
                yield tally
        except asyncio.CancelledError:
            ended("cancelled")
            raise
        except ApiError as error:
            ended(error)
            raise
        except Exception as error:
            logger.exception("a request of %s failed", context.endpoint)
            # Raised as the very error that is counted here, so that it is not counted once more where it is answered.
            failure = EngineError("The server had an error; see its log.")
            ended(failure)
            raise failure from error
        else:
            ended("done")


async def prompt_token_ids(
    service: Service, context: RequestContext, request: ValidRequest, target: Target
) -> list[int]:
    """Token ids of the prompt of `request`, as in its generation, without a limit on the length.

    Args:
        service: service that takes the request.
        context: context of the request.
        request: request with one prompt as text.
        target: model that it names.

    Raises:
        ApiError: the request is bad, or preprocessing cannot be reached.
    """
    check(request, target.model, service.settings)
    with admitted(service, context, target.name):
        assert request.prompt is not None
        deadline = context.deadline(request.timeout, time.monotonic())
        result = await within(deadline, _tokenized(service, context, request, request.prompt, target.model))
    (tokens,) = result.prompt_token_ids
    return tokens


async def count_prompt_tokens(service: Service, context: RequestContext, request: ValidRequest, target: Target) -> int:
    """Number of tokens of the prompt of `request`, which is a part of a request that is still to be admitted.

    Args:
        service: service that takes the request.
        context: context of the request.
        request: request with one prompt as text.
        target: model that it names.

    Raises:
        ApiError: the request is bad, the server takes no more, or preprocessing cannot be reached.
    """
    check(request, target.model, service.settings)
    service.check_admission(context.key)
    assert request.prompt is not None
    deadline = context.deadline(request.timeout, time.monotonic())
    service.count(1, context.key)
    try:
        result = await within(deadline, _tokenized(service, context, request, request.prompt, target.model))
    finally:
        service.count(-1, context.key)
    (tokens,) = result.prompt_token_ids
    return len(tokens)


async def _tokenized(
    service: Service, context: RequestContext, request: ValidRequest, prompt: PromptRequest, model: ServedModel
) -> PromptResult:
    if request.images:
        # Only their sizes count.
        with service.images.budget.lease(context.key) as lease:
            prompt = with_sizes(prompt, await service.images.load(request.images, context.key, lease))
    with named_images(request):
        return await model.tokenize(prompt, key=context.key, any_length=True)
