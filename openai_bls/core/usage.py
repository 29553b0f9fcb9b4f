"""Token usage and finish reasons of answers, in OpenAI's form."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """Prompt tokens by kind."""

    cached_tokens: int
    """Tokens taken from the cache instead of being computed."""
    image_tokens: int | None = None
    """Tokens that stand for images; absent without any."""


class CompletionTokensDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """New tokens by kind."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | None = None
    """Tokens of the completion that its `prediction`, or else the engine's draft where it tells, had in their place;
    absent without one."""
    rejected_prediction_tokens: int | None = None
    """Predicted or drafted tokens that the completion does not have; they do not count as new tokens."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request, summed over its choices; a prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(
        cls,
        prompt: int,
        completion: int,
        *,
        cached: int = 0,
        reasoning: int = 0,
        prediction: tuple[int, int] | None = None,
        image: int | None = None,
    ) -> Usage:
        """The counts.

        Args:
            prompt: tokens of the prompts.
            completion: new tokens.
            cached: prompt tokens that the prefix cache supplied.
            reasoning: new tokens that are reasoning.
            prediction: tokens of predictions or drafts that were accepted, and rejected; None without any.
            image: prompt tokens that stand for images; None without images.
        """
        details = CompletionTokensDetails(reasoning, *(prediction or ()))
        return cls(prompt, completion, prompt + completion, PromptTokensDetails(cached, image), details)
