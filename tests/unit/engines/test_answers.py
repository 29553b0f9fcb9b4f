"""Golden answers, over the null engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine import Engine
from openai_bls.core.manifest import AnswerRecord, EngineLoadError
from openai_bls.engines import answers
from openai_bls.engines.answers import Switch
from openai_bls.engines.registry import create_engine

RECORD = AnswerRecord("cpu", "float32", [[1], [2]], [[4, 5, 6], [7]], [[-0.1, -0.2, -0.3], [-1.0]])


@pytest.fixture
def engine(version_dir: Path) -> Iterator[tuple[Engine, Switch]]:
    switch = Switch(lambda _: None)
    made = create_engine(version_dir, switch, {"engine": "null"})
    yield made, switch
    made.close()


def test_answers_are_the_same_again(engine: tuple[Engine, Switch]) -> None:
    recorded = answers.record(*engine, device="cpu", dtype="float32")
    assert len(recorded.prompts) == len(recorded.token_ids) == answers.PROMPTS
    assert {len(row) for row in recorded.token_ids} == {len(row) for row in recorded.logprobs} == {answers.NEW_TOKENS}
    answers.require_same(*engine, recorded, device="cpu")


def test_other_answers_are_refused(engine: tuple[Engine, Switch]) -> None:
    recorded = answers.record(*engine, device="cpu", dtype="float32")
    changed = [[value - 1 for value in row] for row in recorded.logprobs]
    recorded = msgspec.structs.replace(recorded, logprobs=changed)
    with pytest.raises(EngineLoadError, match="token 0 of answer 0"):
        answers.require_same(*engine, recorded, device="cpu")
    # On another device they are not compared.
    answers.require_same(*engine, recorded, device="NVIDIA H200 (9.0)")


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "said"),
    [
        ([[4, 5, 6], [7]], [[-0.1, -0.21, -0.3], [-1.0]], ""),
        # Two tokens as likely: what follows is another answer.
        ([[4, 8, 9], [7]], [[-0.1, -0.2, -5.0], [-1.0]], ""),
        ([[4, 5, 6], [7]], [[-0.1, -0.2, -0.4], [-1.0]], "token 2 of answer 0"),
        ([[4, 5, 6], [8]], [[-0.1, -0.2, -0.3], [-1.5]], "token 0 of answer 1"),
        ([[4, 5, 6], [7]], [[-0.1, float("nan"), -0.3], [-1.0]], "token 1 of answer 0"),
        ([[4, 5], [7]], [[-0.1, -0.2], [-1.0]], "has 2 tokens instead of 3"),
    ],
)
def test_differences(token_ids: list[list[int]], logprobs: list[list[float]], said: str) -> None:
    found = answers.difference(RECORD, token_ids, logprobs)
    assert said in found
    assert bool(found) == bool(said)


@given(
    was=st.lists(st.floats(-1000, 1000), min_size=1, max_size=4),
    by=st.floats(-1, 1),
    place=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_numbers_that_prompts_are_pooled_into(was: list[float], by: float, place: int, dtype: str) -> None:
    recorded = AnswerRecord("cpu", dtype, [[1], [2]], [[], []], [[], []], [[0.5], was])
    now = list(was)
    room = answers.TOLERANCES[dtype] * max(1.0, *map(abs, was))
    now[place % len(was)] += by
    moved = abs(now[place % len(was)] - was[place % len(was)])
    assert bool(answers.other_numbers(recorded, [[0.5], now])) == (moved > room)
    assert answers.other_numbers(recorded, [[0.5], [*was, 0.0]])
    assert answers.other_numbers(recorded, [[float("nan")], was])
