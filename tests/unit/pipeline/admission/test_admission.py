from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.engine import EngineStats
from openai_bls.core.errors import ApiError, EngineError, OverloadedError, RateLimitError, RequestDeadlineError
from openai_bls.core.keys.key_limits import NO_LIMITS, KeyLimits
from openai_bls.core.request import Deadline
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.ticket import Ticket


class Bench:
    """An admission on a clock of the test's, and an engine that is a list."""

    def __init__(self, capacity: int = 4, limits: dict[str, KeyLimits] | None = None, **settings: Any) -> None:
        self.now = 100.0
        self.capacity = capacity
        self.stats: EngineStats | None = None
        self.running: list[Work] = []
        self.waiting = [0, 0]
        self.instances = settings.pop("instances", 1)
        several_keys = settings.pop("several_keys", False)
        self.admission = Admission(
            lambda: self.capacity,
            OpenAiBlsSettings(**settings),
            lambda key: (limits or {}).get(key, NO_LIMITS),
            lambda: self.stats,
            self.instances,
            self._count,
            lambda: several_keys,
            lambda: self.now,
            # Prompts are read at once.
            lambda: 10**9,
        )

    def _count(self, requests: int, tokens: int) -> None:
        self.waiting[0] += requests
        self.waiting[1] += tokens

    def enter(self, key: str = "", tokens: int = 10, **options: Any) -> Work:
        return Work(self, key, tokens, **options)

    def fill(self, key: str = "", **options: Any) -> list[Work]:
        """Requests until one waits, which is the last."""
        works = [self.enter(key, **options)]
        while works[-1].started:
            works.append(self.enter(key, **options))
        return works

    def serve(self, seconds: float = 1.0) -> Work:
        """The oldest request that runs ends, `seconds` later."""
        self.now += seconds
        work = self.running[0]
        work.end()
        return work

    def deadline(self, timeout_s: float) -> Deadline:
        return Deadline(self.now + timeout_s, timeout_s)


class Work:
    def __init__(
        self,
        bench: Bench,
        key: str,
        tokens: int,
        *,
        max_tokens: int = 10,
        sequences: int = 1,
        timeout_s: float = 0,
        priority: int = 0,
    ) -> None:
        self.bench = bench
        self.key = key
        self.error: ApiError | None = None
        self.started = False
        self.breaks = False
        self.submitted = 0
        """Sequences that the engine got."""
        deadline = bench.deadline(timeout_s) if timeout_s else None
        self.ticket: Ticket = bench.admission.ticket(key, tokens, max_tokens, sequences, deadline, priority)
        self.ticket.enter(self)

    def submit(self, count: int) -> None:
        self.started = True
        if self.breaks:
            raise ValueError("no engine")
        if not self.submitted:
            self.bench.running.append(self)
        self.submitted += count

    def fail(self, error: ApiError) -> None:
        self.error = error
        self.end(done=False)

    def end(self, tokens: int = 10, *, done: bool = True) -> None:
        if self in self.bench.running:
            self.bench.running.remove(self)
        self.ticket.leave(tokens, done=done)


def test_an_engine_with_room_gets_requests_at_once() -> None:
    bench = Bench(capacity=8)
    # As many as it runs, and a few ahead.
    assert sum(work.started for work in bench.fill()) == 9
    assert bench.waiting == [1, 10]
    assert (bench.admission.waiting, bench.admission.running) == (1, 9)


def test_no_place_stays_empty_while_something_waits() -> None:
    bench = Bench(capacity=4)
    works = bench.fill()
    works[0].end()
    assert works[-1].started
    assert bench.waiting == [0, 0]
    # An engine that has been reloaded may have more places.
    last = bench.fill()[-1]
    bench.capacity = 6
    assert bench.enter().started
    assert last.started


@given(st.lists(st.one_of(st.sampled_from(["a", "b", "c"]), st.integers(0, 20)), max_size=80), st.integers(1, 5))
def test_work_conservation_and_order_whatever_happens(steps: list[str | int], capacity: int) -> None:
    bench = Bench(capacity)
    works: list[Work] = []
    for step in steps:
        if isinstance(step, str):
            works.append(bench.enter(step, tokens=1 + len(works) % 7, sequences=1 + len(works) % 3))
        elif step < len(works):
            works.pop(step).end(done=step % 2 == 0)
        running = sum(work.ticket.running for work in works)
        assert bench.admission.running == running
        waiting = [work for work in works if not work.started]
        assert bench.waiting == [len(waiting), sum(work.ticket.prompt_tokens for work in waiting)]
        # With room for one there is nothing that waits.
        assert not waiting or running >= capacity
        for key in "abc":
            states = [work.started for work in works if work.key == key]
            assert states == sorted(states, reverse=True)
    while works:
        works.pop(next(at for at, work in enumerate(works) if work.started)).end()
    assert (bench.waiting, bench.admission.running) == ([0, 0], 0)


def test_sequences_leave_one_by_one() -> None:
    bench = Bench(capacity=4)
    first = bench.enter(sequences=6)
    last = bench.enter()
    for _ in range(2):
        assert not last.started
        first.ticket.sequence_ended()
    assert last.started
    first.end()
    assert bench.admission.running == 1
    first.ticket.sequence_ended()
    assert bench.admission.running == 1


def test_a_key_that_runs_nothing_finds_a_place() -> None:
    bench = Bench(64, several_keys=True)
    many = [bench.enter("many") for _ in range(200)]
    started = [work for work in many if work.started]
    # All but a sixteenth of 64.
    assert len(started) == 60
    others = [bench.enter(key) for key in ("a", "a", "b", "c", "d")]
    # The first of each.
    assert [work.started for work in others] == [True, False, True, True, True]
    more = [bench.enter(str(number)) for number in range(20)]
    late = next(work for work in more if not work.started)
    while not late.started:
        bench.serve()
    # Before all that have come first.
    assert [work for work in many if work.started] == started
    # The others take turns.
    while not others[1].started:
        bench.serve()
    assert not all(work.started for work in many)


def test_a_key_that_runs_nothing_is_not_refused_for_what_another_has_waiting() -> None:
    bench = Bench(16, several_keys=True, max_waiting_requests=3)
    bench.fill("many")
    bench.enter("many")
    bench.enter("many")
    with pytest.raises(RateLimitError):
        bench.enter("many")
    assert bench.enter("other").started


def test_without_several_keys_all_places_are_taken() -> None:
    for options in ({"several_keys": False}, {"several_keys": True, "reserved_places_share": 0.0}):
        bench = Bench(64, **options)
        assert len(bench.fill("many")) > 64
    bench = Bench(1, several_keys=True)
    assert bench.enter("many").started


@pytest.mark.parametrize(
    ("settings", "waiting", "kind"),
    [({"max_waiting_requests": 3}, 3, "requests"), ({"max_waiting_tokens": 35}, 3, "tokens")],
)
def test_the_queue_is_bounded(settings: dict[str, Any], waiting: int, kind: str) -> None:
    bench = Bench(capacity=2, **settings)
    bench.fill()
    for _ in range(waiting - 1):
        bench.enter("other")
    with pytest.raises(RateLimitError) as caught:
        bench.enter("third")
    error = caught.value
    assert (error.status, error.type, error.code, error.reason) == (429, kind, "rate_limit_exceeded", "queue_full")
    assert error.headers == {"Retry-After": "1"}
    # There is room again.
    bench.serve()
    bench.enter()


def test_a_long_prompt_alone_may_wait() -> None:
    bench = Bench(capacity=1, max_waiting_tokens=35)
    while bench.enter().started and not bench.waiting[0]:
        pass
    bench.serve()
    assert bench.waiting == [0, 0]
    assert not bench.enter(tokens=1000).started
    with pytest.raises(RateLimitError):
        bench.enter(tokens=1)


def test_each_key_has_bounds_of_its_own() -> None:
    limits = {"small": KeyLimits(max_waiting_requests=1), "short": KeyLimits(max_waiting_tokens=15)}
    bench = Bench(capacity=1, limits=limits, max_waiting_requests_per_key=3)
    bench.fill()
    for key, most in (("small", 1), ("short", 1), ("plain", 3)):
        for _ in range(most):
            bench.enter(key)
        with pytest.raises(RateLimitError) as refused:
            bench.enter(key)
        assert refused.value.reason == "queue_full"
    # Requests without a key have the server's bounds alone.
    for _ in range(10):
        bench.enter()


def test_retry_after_is_the_time_that_the_queue_takes() -> None:
    bench = Bench(capacity=1, max_waiting_requests=10)
    bench.fill(tokens=90)
    while bench.admission.waiting < 10:
        bench.enter(tokens=90)
    for _ in range(30):
        bench.serve(2.0)
        bench.enter(tokens=90)
    # Ten of 100 tokens each wait, and one goes every two seconds.
    assert bench.admission.wait_s("") == pytest.approx(20, rel=0.1)
    with pytest.raises(RateLimitError) as caught:
        bench.enter()
    assert 19 <= int(caught.value.headers["Retry-After"]) <= 21
    # Another key waits for its turn alone.
    assert bench.admission.wait_s("b") == 0


def test_what_would_be_too_late_is_refused_at_once() -> None:
    bench = Bench(capacity=1)
    bench.fill(tokens=90)
    while bench.admission.waiting < 10:
        bench.enter(tokens=90)
    # Nothing has been measured yet.
    bench.admission.check("", bench.deadline(0.1))
    for _ in range(30):
        bench.serve(2.0)
        bench.enter(tokens=90)
    bench.admission.check("", bench.deadline(30))
    with pytest.raises(RateLimitError) as caught:
        bench.admission.check("", bench.deadline(15))
    assert caught.value.reason == "too_late"
    # Of another key it would be in time, and ahead of the others of its own.
    bench.admission.check("b", bench.deadline(15))
    bench.admission.check("", bench.deadline(15), priority=-1)
    first = bench.enter(priority=-1, timeout_s=15)
    bench.serve(2.0)
    assert first.started


def test_what_has_become_too_late_never_reaches_the_engine() -> None:
    bench = Bench(capacity=1)
    bench.fill()
    late = bench.enter(timeout_s=5)
    in_time = bench.enter(timeout_s=50)
    bench.now += 4.9
    bench.serve(0.2)
    bench.serve(0.2)
    assert isinstance(late.error, RequestDeadlineError)
    assert late.error.waited
    assert (late.started, late.error.status, late.error.code) == (False, 504, "deadline_exceeded")
    assert in_time.started
    assert bench.waiting == [0, 0]


def test_a_request_that_cannot_be_started_harms_no_other() -> None:
    bench = Bench(capacity=1)
    broken, good = bench.fill()[-1], bench.enter()
    broken.breaks = True
    bench.serve()
    assert isinstance(broken.error, EngineError)
    assert good.started


def test_an_engine_that_others_fill_too_is_shared() -> None:
    bench = Bench(capacity=64, instances=2)
    works = bench.fill()
    assert bench.admission.running == 64 + 8
    # As many of another instance stand in its queue.
    bench.stats = EngineStats(running=64, waiting=80, kv_cache_usage=0.5, steps=1, generated_tokens=1)
    for work in works[:30]:
        bench.now += 1
        work.end()
        bench.enter()
    assert bench.admission.running < 64
    while bench.admission.running > 35:
        bench.running[0].end()
    assert bench.admission.running >= 32
    # The other one has stopped.
    bench.stats = EngineStats(running=40, waiting=0, kv_cache_usage=0.5, steps=2, generated_tokens=2)
    bench.fill()
    assert bench.admission.running >= 64


def test_a_server_that_stops_ends_what_waits() -> None:
    bench = Bench(capacity=1)
    bench.fill()
    waiting = [bench.enter(key) for key in ("", "a", "b")]
    bench.admission.close(OverloadedError("The server is shutting down."))
    assert [str(work.error) for work in waiting] == ["The server is shutting down."] * 3
    assert bench.waiting == [0, 0]
    bench.serve()
    assert bench.admission.waiting == 0
