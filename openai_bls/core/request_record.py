"""Record of one finished request, for metrics, logs and traces."""

from __future__ import annotations

from typing import Literal

import msgspec

from openai_bls.core.errors import ApiError
from openai_bls.core.usage import FinishReason, Usage

Outcome = Literal["done", "cancelled"] | ApiError
"""End of a request: an answer, the client's disconnect, or an error."""


class Progress(msgspec.Struct, frozen=True):
    """Progress of a request. Times are of `time.monotonic()`, in seconds."""

    finish_reasons: list[FinishReason]
    """One per finished sequence."""
    usage: Usage
    first_token_at: float | None = None
    """Time of the first token; None if there was none."""
    queued_at: float | None = None
    """Time at which it was ready for an engine; None if it never was."""
    submitted_at: float | None = None
    """Time at which the engine was given it; None if no engine was."""
    queue_s: float | None = None
    """Seconds from `queued_at` that it waited for a place in the batch: for its turn, and in the engine if it tells."""


class RequestRecord(Progress, frozen=True, kw_only=True):
    """One finished request: the whole of its progress, and whose it was."""

    endpoint: str
    """Name of the endpoint in the metrics."""
    model: str
    outcome: Outcome
    began_at: float
    ended_at: float
    key: str = ""
    """Name of the API key that it came with; empty if it has none."""
