"""Requests that share their steps from the first one on, whatever the threads of the machine do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_bls.core.engine_types import GenerationRequest
from tests.engine_contract.support import Recorder


def submit_together(engine: Any, requests: Sequence[GenerationRequest]) -> None:
    """Submit requests that the embedded engine's runner gets at once: when the last one is prepared.

    Each of them comes to the runner in the end: none is refused or cancelled before its first step.
    """
    batcher = engine._batcher
    add = batcher.add
    waiting: list[tuple[Any, ...]] = []

    def later(*given: Any) -> None:
        # On the engine's thread, between two steps.
        waiting.append(given)
        if len(waiting) == len(requests):
            del batcher.add
            for each in waiting:
                add(*each)

    batcher.add = later
    for one in requests:
        engine.submit(one)


def run_together(engine: Any, recorder: Recorder, requests: Sequence[GenerationRequest]) -> list[list[int]]:
    """The tokens of requests that share their steps."""
    submit_together(engine, requests)
    recorder.wait_end(*(one.request_id for one in requests))
    return [recorder.tokens[one.request_id] for one in requests]
