"""Token usage and finish reasons of answers, in OpenAI's form."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Prompt tokens by kind."""

    cached_tokens: int
    """Taken from the cache instead of being computed."""


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """New tokens by kind."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request, summed over its choices; a prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, prompt: int, completion: int, *, cached: int = 0, reasoning: int = 0) -> Usage:
        """The counts, of which `cached` are prompt tokens and `reasoning` new ones."""
        return cls(
            prompt, completion, prompt + completion, PromptTokensDetails(cached), CompletionTokensDetails(reasoning)
        )
