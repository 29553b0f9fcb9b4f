"""State of a sequence that writers read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.usage import FinishReason


class SequenceState:
    """Counts and end of one sequence of a request, which grow as it is generated.

    Args:
        index: index of the choice.
        request: request to the engine.
        custom_tools: names of the custom tools, of whose calls the writer gets the input instead of the arguments.
    """

    __slots__ = (
        "cached_tokens",
        "completion_tokens",
        "custom_tools",
        "finish_reason",
        "index",
        "kv_transfer_params",
        "matched_stop",
        "num_accepted_tokens",
        "num_draft_tokens",
        "predicted_tokens",
        "reasoning_tokens",
        "request",
    )

    def __init__(self, index: int, request: GenerationRequest, custom_tools: Collection[str]) -> None:
        self.index = index
        self.request = request
        self.completion_tokens = self.reasoning_tokens = self.cached_tokens = self.predicted_tokens = 0
        self.num_draft_tokens = self.num_accepted_tokens = 0
        self.kv_transfer_params: dict[str, Any] | None = None
        self.finish_reason: FinishReason | None = None
        self.matched_stop: str | None = None
        """The stop string that ended it."""
        self.custom_tools = custom_tools
