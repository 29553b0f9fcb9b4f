"""One-shot endpoints, which generate nothing: admission, a record of each request, prompt token ids."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openai_bls.core.api_keys import key_name
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.core.request import Deadline, ValidRequest
from openai_bls.core.request_record import Outcome, Progress
from openai_bls.core.usage import FinishReason, Usage
from openai_bls.pipeline.key_budgets import Lease
from openai_bls.pipeline.prepare import check
from openai_bls.pipeline.service import Service, within

logger = logging.getLogger(__name__)

OneShot = Callable[[Service, dict[str, Any]], Coroutine[Any, Any, msgspec.Struct]]
"""Maker of the whole answer to a request body; raises ApiError. Cancelling it cancels the work."""


@dataclass
class Tally:
    """Tokens of a request up to now."""

    prompt_tokens: int = 0
    """Given to the engine."""
    usage: Usage | None = None
    """Instead of it, where a model tells it."""
    finish_reasons: list[FinishReason] = field(default_factory=list)
    first_token_at: float | None = None
    """`time.monotonic()` of the first chunk of a stream."""
    lease: Lease | None = None
    """Part of the key's budget that the request has."""


@contextmanager
def admitted(service: Service, endpoint: str, model: str) -> Iterator[Tally]:
    """One request in progress for as long as the block lasts.

    Args:
        service: takes the request.
        endpoint: its name in the metrics.
        model: that it is for, as the metrics call it.

    Raises:
        OverloadedError: the server takes no more.
        RateLimitError: it is one too many.
        EngineError: the block failed unexpectedly; the log says how.
    """
    service.check_admission()
    lease = service.budgets.enter(key_name.get())
    record = service.recorder(endpoint, model)
    tally = Tally(lease=lease)

    def ended(outcome: Outcome) -> None:
        usage = tally.usage or Usage.of(tally.prompt_tokens, 0)
        lease.end(usage.total_tokens)
        record(outcome, Progress(tally.finish_reasons, usage, tally.first_token_at))

    service.count(1)
    try:
        yield tally
    except asyncio.CancelledError:
        ended("cancelled")
        raise
    except ApiError as error:
        ended(error)
        raise
    except Exception as error:
        logger.exception("a request of %s failed", endpoint)
        # Raised as the very error that is counted here, so that it is not counted once more where it is answered.
        failure = EngineError("The server had an error; see its log.")
        ended(failure)
        raise failure from error
    else:
        ended("done")
    finally:
        service.count(-1)


async def prompt_token_ids(service: Service, request: ValidRequest, endpoint: str) -> list[int]:
    """Token ids of the prompt of `request`, as in its generation, without a limit on the length.

    Args:
        service: takes the request.
        request: with one prompt as text.
        endpoint: its name in the metrics.

    Raises:
        ApiError: the request is bad, or preprocessing cannot be reached.
    """
    target = service.models.find(request.model)
    check(request, target.model, service.settings)
    with admitted(service, endpoint, target.name):
        assert request.prompt is not None
        deadline = Deadline.of(request.timeout, time.monotonic())
        result = await within(deadline, target.model.tokenize(request.prompt, any_length=True))
    (tokens,) = result.prompt_token_ids
    return tokens
