"""Record of one finished request, for metrics."""

from __future__ import annotations

from typing import Literal, NamedTuple

from openai_bls.core.errors import ApiError
from openai_bls.core.usage import FinishReason, Usage

Outcome = Literal["done", "cancelled"] | ApiError
"""End of a request: an answer, the client's disconnect, or an error."""


class RequestRecord(NamedTuple):
    """One finished request. Times are of `time.monotonic()`, in seconds."""

    endpoint: str
    """Name of the endpoint in the metrics."""
    model: str
    outcome: Outcome
    finish_reasons: list[FinishReason]
    """One per finished sequence."""
    usage: Usage
    began_at: float
    first_token_at: float | None
    """None if there was no token."""
    ended_at: float
    key: str = ""
    """Name of the API key that it came with; empty if it has none."""
