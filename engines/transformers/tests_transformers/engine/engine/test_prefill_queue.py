"""Prompts looked at between two steps: together where they can be, never so many that the others wait long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest
from openai_bls_transformers.engine import prefill_queue
from openai_bls_transformers.engine.prefill_queue import PrefillQueue
from openai_bls_transformers.engine.request_state import RequestState
from openai_bls_transformers.model.prompt_forward import PromptFindings
from tests.engine_contract.support import request

PASSES = "openai_bls_transformers.model.prompt_forward."


class Passes:
    """Stand-in for the passes, each of which takes its time; has the lengths of the prompts of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, token_s: float) -> None:
        self.seen: list[list[int]] = []
        self.now = 0.0
        self._token_s = token_s
        monkeypatch.setattr(PASSES + "prompt_pass", lambda model, asked: self._run([asked])[0])
        monkeypatch.setattr(PASSES + "embeddings", lambda model, asked: [found.embedding for found in self._run(asked)])
        monkeypatch.setattr(prefill_queue, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _run(self, asked: list[GenerationRequest]) -> list[PromptFindings]:
        lengths = [len(one.prompt_token_ids) for one in asked]
        self.seen.append(lengths)
        self.now += self._token_s * len(lengths) * max(lengths)
        return [PromptFindings(embedding=[1.0]) for _ in asked]


def model(rope_type: str = "default") -> Any:
    text = SimpleNamespace(rope_parameters={"rope_type": rope_type})
    return SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text), modules=list)


def run(queue: PrefillQueue, lengths: list[int], **more: Any) -> list[int]:
    """How many prompts leave the queue between one step and the next."""
    for at, length in enumerate(lengths):
        asked = request(at, prompt=[1] * length, max_tokens=0, pooling="last", **more)
        assert queue.start(RequestState(str(at), asked, "tiny")) == []
    found = []
    while done := queue.examine(lambda state: True, lambda: False):
        found.append(len(done))
    return found


@pytest.mark.parametrize(
    ("lengths", "token_s", "passes"),
    [
        # Padding counts.
        ([100, 100, 100], 0.0, [[100, 100], [100]]),
        ([10, 200, 10], 0.0, [[10], [200], [10]]),
        # A long prompt alone.
        ([5000, 5000], 0.0, [[5000], [5000]]),
        # After the first, by the time that a token takes: at least 256 and at most 2,048.
        ([1] * 3000, 1e-6, [[1] * 256, [1] * 2048, [1] * 696]),
        ([1] * 1000, 5e-5, [[1] * 256, [1] * 400, [1] * 344]),
        ([1] * 600, 1.0, [[1] * 256, [1] * 256, [1] * 88]),
    ],
)
def test_how_many_share_a_pass(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], token_s: float, passes: list[list[int]]
) -> None:
    ran = Passes(monkeypatch, token_s)
    wakes: list[None] = []
    queue = PrefillQueue(model(), None, lambda: wakes.append(None))
    assert sum(run(queue, lengths)) == len(lengths)
    assert ran.seen == passes


def test_steps_go_on_between_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    Passes(monkeypatch, 1.0)
    wakes: list[None] = []
    queue = PrefillQueue(model(), None, lambda: wakes.append(None))
    assert run(queue, [1] * 600) == [256, 256, 88]
    assert len(wakes) == 2


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=8), st.sampled_from([1e-6, 1e-4, 1e-3]), st.integers(1, 9))
def test_steps_have_as_much_time_as_passes(lengths: list[int], token_s: float, times: int) -> None:
    """However long the prompts are; without sequences that wait for steps there is no rest."""
    with pytest.MonkeyPatch.context() as patch:
        ran = Passes(patch, token_s)
        wakes: list[None] = []
        queue = PrefillQueue(model(), None, lambda: wakes.append(None))
        for at, length in enumerate(lengths):
            queue.start(RequestState(str(at), request(at, prompt=[1] * length, max_tokens=0, pooling="last"), "tiny"))
        step_s, left, in_passes, in_steps = token_s * times * 50, len(lengths), 0.0, 0.0
        while left:
            began = ran.now
            found = queue.examine(lambda state: True, lambda: True)
            # Without a pass there was a rest, that is, what is left is waited for.
            assert found or wakes
            assert not found or in_steps >= in_passes
            in_passes += ran.now - began
            left -= len(found)
            ran.now += step_s
            in_steps += step_s
        for at in range(2):
            queue.start(RequestState(f"x{at}", request(at, prompt=[1] * 3000, max_tokens=0, pooling="last"), "tiny"))
        assert [len(queue.examine(lambda state: True, lambda: False)) for _ in range(2)] == [1, 1]


def test_a_pass_that_yields_log_probabilities_has_one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Passes(monkeypatch, 0.0)
    run(PrefillQueue(model(), None, lambda: None), [5, 5], prompt_logprobs=1)
    assert ran.seen == [[5], [5]]


def test_prompts_of_different_lengths_share_none_where_the_longest_changes_the_positions_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = Passes(monkeypatch, 0.0)
    run(PrefillQueue(model("dynamic"), None, lambda: None), [5, 5, 6])
    assert ran.seen == [[5, 5], [6]]


def test_prompts_of_a_pass_that_fails_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Passes(monkeypatch, 0.0)

    def fail(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(PASSES + "embeddings", fail)
    assert run(PrefillQueue(model(), None, lambda: None), [5, 6]) == [2]
    assert ran.seen == [[5], [6]]
