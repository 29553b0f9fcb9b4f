"""The life of a request: what it holds is given back once, however it ends, and only what a model took is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.errors import EngineError
from openai_bls.core.keys.key_limits import KeyLimits
from openai_bls.core.request_record import Progress, RequestRecord
from openai_bls.core.usage import Usage
from openai_bls.pipeline.admission.key_budgets import KeyBudgets
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.lifecycle.life import Life
from tests.unit.core_support import request_context

PROGRESS = Progress(["stop"], Usage.of(3, 2), 11.0, 9.0, 10.0, 0.5)


class World:
    """A key with 100 tokens a minute, of which a request holds 60."""

    def __init__(self) -> None:
        self.budgets = KeyBudgets(lambda key: KeyLimits(tokens_per_minute=100), clock=lambda: 0.0)
        self.busy = 0
        self.records: list[RequestRecord] = []

    def begin(self, context: RequestContext | None = None) -> Life:
        context = context or request_context(key="alice")
        life = Life(context, self.budgets.enter("alice"), self._count, self.records.append, began_at=8.0)
        life.lease.take_tokens(60, 10)
        return life

    @property
    def left(self) -> int:
        return int(self.budgets.headers("alice")["x-ratelimit-remaining-tokens"])

    def _count(self, change: int) -> None:
        self.busy += change


def test_an_exception_gives_back_what_was_held_and_leaves_no_record() -> None:
    world = World()
    life = world.begin()
    assert (world.busy, world.left) == (1, 40)
    with pytest.raises(EngineError), life:
        raise EngineError("x")
    assert (world.busy, world.left, world.records) == (0, 100, [])


def test_a_request_that_a_model_took_is_recorded_at_its_end() -> None:
    world = World()
    with world.begin() as life:
        life.taken("tiny")
    # It goes on.
    assert (world.busy, world.left, world.records) == (1, 40, [])
    life.ended("done", PROGRESS)
    (record,) = world.records
    assert (world.busy, world.left) == (0, 95)
    assert record._replace(ended_at=12.0) == RequestRecord(
        endpoint="chat.completions",
        model="tiny",
        outcome="done",
        finish_reasons=["stop"],
        usage=PROGRESS.usage,
        began_at=8.0,
        first_token_at=11.0,
        ended_at=12.0,
        key="alice",
        queued_at=9.0,
        submitted_at=10.0,
        queue_s=0.5,
    )


def test_an_exception_after_the_end_changes_nothing() -> None:
    world, error = World(), EngineError("x")
    life = world.begin()
    life.taken("tiny")
    life.ended(error, PROGRESS)
    with pytest.raises(EngineError), life:
        raise error
    assert (world.busy, world.left, len(world.records)) == (0, 95, 1)


def test_observer_and_guard_are_told_of_the_record() -> None:
    told: list[Any] = []

    class Told:
        began_at = 7.0
        ended = told.append

    world = World()
    context = RequestContext("POST", "/v1/chat/completions", observer=Told())  # type: ignore[arg-type]
    context.guarded = Told()  # type: ignore[assignment]
    life = Life(context, world.budgets.enter("alice"), on_end=world.records.append)
    life.taken("tiny")
    context.released()
    assert (life.began_at, told) == (7.0, [])
    life.ended("cancelled", PROGRESS)
    assert told == [context, world.records[0]]
    assert context.records == world.records
