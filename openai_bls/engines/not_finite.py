"""Requests for which a model computes NaN or infinity: an error that says so, in the place of arbitrary tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from openai_bls.core.engine_types import GenerationRequest, TokenDelta

NOT_FINITE = -2
"""Token id of a sequence whose logits are NaN or infinite, so that none could be chosen."""

WORDS = "computes NaN or infinity"
"""Words that every message about it has."""

logger = logging.getLogger(__name__)


class NotFiniteError(Exception):
    """A model has computed NaN or infinity for one request."""


def not_finite_end(request: GenerationRequest, model_name: str) -> TokenDelta:
    """The last delta of such a request.

    Args:
        request: the request.
        model_name: name of the served model.
    """
    adapter = f" with the adapter {request.lora_name}" if request.lora_name else ""
    fact = f"he model {model_name}{adapter} {WORDS} for this request"
    logger.error("request %d ends: t%s", request.request_id, fact)
    message = f"T{fact}, so it has no answer: its weights are corrupt, or its data type is too narrow for them."
    return TokenDelta(request.request_id, [], "error", error=message)


def require_numbers(logprobs: Iterable[float]) -> None:
    """Check log-probabilities of tokens that a model has chosen, or of a prompt's.

    Raises:
        NotFiniteError: one is NaN, or above 0 without bounds. Minus infinity is a token that the model rules out.
    """
    if any(math.isnan(one) or one == math.inf for one in logprobs):
        raise NotFiniteError
