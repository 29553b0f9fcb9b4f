"""Prompts looked at between two steps: never so many that the others wait long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from openai_bls.embedded.engine import prefill_queue
from openai_bls.embedded.engine.prefill_queue import PrefillQueue
from openai_bls.embedded.engine.request_state import RequestState
from openai_bls.embedded.model.prompt_forward import PromptFindings
from tests.unit.engines.engine_support import request


@pytest.mark.parametrize(
    ("lengths", "seconds", "expected"),
    [
        # A step's worth of tokens at most, and a long prompt alone.
        ([1000, 1000, 100, 10], 0.0, [2, 2]),
        ([5000, 5000], 0.0, [1, 1]),
        # However short the prompts are, each takes its time.
        ([1] * 5, 0.009, [3, 2]),
        ([1] * 3, 1.0, [1, 1, 1]),
    ],
)
def test_how_many_at_once(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], seconds: float, expected: list[int]
) -> None:
    now = 0.0

    def prompt_pass(model: Any, asked: Any) -> PromptFindings:
        nonlocal now
        now += seconds
        return PromptFindings(embedding=[1.0])

    monkeypatch.setattr("openai_bls.embedded.model.prompt_forward.prompt_pass", prompt_pass)
    monkeypatch.setattr(prefill_queue, "time", SimpleNamespace(monotonic=lambda: now))
    wakes: list[None] = []
    queue = PrefillQueue(None, None, lambda: wakes.append(None))
    for at, length in enumerate(lengths):
        asked = request(at, prompt=[1] * length, max_tokens=0, pooling="last")
        assert queue.start(RequestState(str(at), asked)) == []
    found = []
    while done := queue.examine(lambda state: True):
        found.append(len(done))
    assert found == expected
    assert len(wakes) == len(expected) - 1
