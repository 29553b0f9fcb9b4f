"""Runners of the embedded engine by their names."""

from __future__ import annotations

from typing import Any

import torch

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls_transformers.runners.continuous_batching import ContinuousBatcher
from openai_bls_transformers.runners.dynamic_cache_runner import DynamicCacheRunner
from openai_bls_transformers.runners.runner import BatchingConfig, BeforeStep, OnOutputs, Runner
from openai_bls_transformers.runners.runner_choice import RunnerChoice
from openai_bls_transformers.speculation import speculation


class UnusableRunnerError(Exception):
    """A choice that does not do, where another may; the message is for the log."""


def make(
    model: Any,
    choice: RunnerChoice,
    config: BatchingConfig,
    before_step: BeforeStep,
    on_outputs: OnOutputs,
    *,
    max_model_len: int,
) -> Runner:
    """The runner of `choice`, with its KV cache.

    Raises:
        UnusableRunnerError: it cannot run the model this way.
        EngineLoadError: nor could another.
    """
    if config.speculation is not None:
        reason = speculation.refusal(model.config, choice.runner, paged=config.paged, images=config.images)
        if reason is not None:
            raise UnusableRunnerError(reason)
    if config.kv_events and choice.runner != "continuous_batching":
        raise UnusableRunnerError("kv_events_endpoint is set, and only continuous_batching has a prefix cache")
    runner = ContinuousBatcher if choice.runner == "continuous_batching" else DynamicCacheRunner
    try:
        batcher: Runner = runner(model, config, before_step, on_outputs)
    except ValueError as error:
        raise UnusableRunnerError(f"the KV cache cannot be set up: {first_line(error)}") from None
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise EngineLoadError(
            f"the KV cache cannot be set up: {first_line(error)}: lower max_tokens_in_kv_cache "
            "(--max-tokens-in-kv-cache), or build with a smaller --max-model-len"
        ) from None
    if batcher.capacity < max_model_len:
        raise EngineLoadError(
            f"the KV cache holds {batcher.capacity} tokens, fewer than max_model_len {max_model_len}: "
            "raise max_tokens_in_kv_cache or build with a smaller --max-model-len"
        )
    return batcher
