"""Sequences that the engine starts again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from openai_bls_transformers.runners.continuous_batching import ContinuousBatcher


@contextlib.contextmanager
def counted_restarts(engine: Any) -> Iterator[list[str]]:
    """The sequences that the embedded engine starts again while this is open."""
    batcher = engine._batcher
    owner, name = batcher, "_preempt"
    if isinstance(batcher, ContinuousBatcher):
        owner, name = batcher._manager.batch_processor.scheduler, "add_waiting_request"
    original = getattr(owner, name)
    restarts: list[str] = []

    def count(state: Any) -> None:
        if owner is batcher or state._true_initial_tokens:
            restarts.append(state.request_id)
        original(state)

    setattr(owner, name, count)
    yield restarts
    delattr(owner, name)
