"""Requests of many sequences, where several keys share an engine's places."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.errors import ApiError, EngineError, OverloadedError, RequestDeadlineError
from openai_bls.core.request import Deadline
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.ticket import Ticket

TOKENS = 300
"""Cost of each sequence: more than a quantum, so that each is a turn."""


class Engine:
    """In-flight batching: so many sequences at once, first come, first served; its clock is its steps."""

    def __init__(self, capacity: int, share: float = 0.0625) -> None:
        self.capacity = capacity
        self.now = 100.0
        self.sequences: deque[Sequence] = deque()
        self.waiting = [0, 0]
        self.requests: list[Request] = []
        self.ends = 0
        self.reserved = int(capacity * share)
        self.several = True
        self.admission = Admission(
            lambda: self.capacity,
            OpenAiBlsSettings(reserved_places_share=share, max_waiting_requests=10_000),
            on_waiting=self._count,
            several_keys=lambda: self.several,
            clock=lambda: self.now,
            # Prompts are read at once.
            step_tokens=lambda: 10**9,
        )

    def _count(self, requests: int, tokens: int) -> None:
        self.waiting[0] += requests
        self.waiting[1] += tokens

    def request(self, key: str, count: int = 1, **options: Any) -> Request:
        request = Request(self, key, count, **options)
        self.requests.append(request)
        return request

    def step(self) -> None:
        """A step for each sequence that has a place in the batch."""
        self.now += 1
        for sequence in list(self.sequences)[: self.capacity]:
            # One that was cancelled by another's end has gone.
            if sequence in self.sequences:
                sequence.request.first_at = sequence.request.first_at or self.now
                sequence.steps -= 1
                sequence.request.tokens += 1
                if not sequence.steps:
                    sequence.end()

    def check(self) -> None:
        """The invariants of what runs and what waits."""
        live = [request for request in self.requests if not request.ended]
        assert self.admission.running == len(self.sequences) == sum(request.ticket.running for request in live)
        for request in live:
            assert request.submitted + request.ticket.left == request.count
            assert request.ticket.running == request.submitted - request.finished
        unstarted = [request for request in live if not request.submitted]
        assert self.waiting == [len(unstarted), sum(request.ticket.prompt_tokens for request in unstarted)]
        waiting = [request for request in live if request.ticket.left]
        assert self.admission.waiting == len(waiting)
        # Nothing waits while there is room for it.
        assert not waiting or len(self.sequences) >= max(1, self.capacity - self.reserved)
        for key in {request.key for request in live}:
            begun = [request.ticket.left for request in live if request.key == key and request.ticket.left]
            # In order: at most the first one that waits has begun.
            own = [request for request in live if request.key == key]
            later = own[next((at for at, request in enumerate(own) if request.ticket.left), len(own)) + 1 :]
            assert not begun or not any(request.submitted for request in later)


class Sequence:
    def __init__(self, request: Request, index: int, steps: int) -> None:
        self.request = request
        self.index = index
        self.steps = steps

    def end(self) -> None:
        request = self.request
        request.engine.sequences.remove(self)
        request.engine.ends += 1
        request.finished += 1
        if request.finished == request.count:
            request.leave(done=True)
        else:
            request.ticket.sequence_ended()


class Request:
    """A job whose submitted sequences are counted."""

    def __init__(
        self,
        engine: Engine,
        key: str,
        count: int,
        *,
        steps: int = 5,
        timeout_s: float = 0.0,
        priority: int = 0,
        breaks_at: float = math.inf,
    ) -> None:
        self.engine = engine
        self.key = key
        self.count = count
        self.steps = steps
        self.breaks_at = breaks_at
        self.submitted = self.finished = self.tokens = 0
        self.ended = False
        self.first_at: float | None = None
        self.error: ApiError | None = None
        deadline = Deadline(engine.now + timeout_s, timeout_s) if timeout_s else None
        self.ticket: Ticket = engine.admission.ticket(key, TOKENS * count, 0, count, deadline, priority)
        self.entered_at = engine.ends
        self.submitted_at: int | None = None
        """Sequences that had ended when its first one was submitted."""
        self.ticket.enter(self)

    def submit(self, count: int) -> None:
        assert count > 0
        assert not self.ended
        assert self.submitted + count <= self.count
        if self.submitted + count > self.breaks_at:
            self.leave(done=False)
            raise ValueError("no engine")
        if self.submitted_at is None:
            self.submitted_at = self.engine.ends
        for _ in range(count):
            self.engine.sequences.append(Sequence(self, self.submitted, self.steps))
            self.submitted += 1

    def fail(self, error: ApiError) -> None:
        if not self.ended:
            self.error = error
            self.leave(done=False)

    def leave(self, *, done: bool) -> None:
        assert not self.ended
        self.ended = True
        self.engine.sequences = deque(one for one in self.engine.sequences if one.request is not self)
        self.ticket.leave(self.tokens, self.first_at, done=done)


FLOODS = st.lists(st.tuples(st.integers(1, 128), st.integers(1, 9)), min_size=1, max_size=6)


@given(FLOODS, st.integers(16, 64), st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_beside_a_flood_of_sequences_another_key_waits_for_none_of_them(
    flood: list[tuple[int, int]], capacity: int, pauses: list[int]
) -> None:
    engine = Engine(capacity)
    for count, steps in flood:
        engine.request("alice", count, steps=steps)
        assert len(engine.sequences) <= capacity - engine.reserved
    for pause in pauses:
        for _ in range(pause):
            engine.step()
        bob = engine.request("bob", steps=2)
        assert bob.submitted_at == bob.entered_at
        # It has a place in the batch, and not in the engine's queue.
        assert len(engine.sequences) <= capacity
        engine.step()
        engine.step()
        assert bob.ended
        engine.check()


@given(FLOODS, st.integers(1, 15), st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_where_no_place_is_kept_free_another_key_waits_for_the_next_end(
    flood: list[tuple[int, int]], capacity: int, pauses: list[int]
) -> None:
    engine = Engine(capacity)
    assert not engine.reserved
    for count, steps in flood:
        engine.request("alice", count, steps=steps)
    for pause in pauses:
        for _ in range(pause):
            engine.step()
        # What the engine was given ahead, which may be less by now.
        ahead = max(0, len(engine.sequences) - capacity)
        bob = engine.request("bob", steps=2)
        while not bob.ended:
            engine.step()
        assert bob.submitted_at is not None
        # The first turn of alice may have begun.
        assert bob.submitted_at - bob.entered_at <= ahead + 2
        engine.check()


@pytest.mark.parametrize("count", [2, 8, 128])
def test_a_key_that_runs_nothing_gets_one_of_the_places_that_are_kept_free(count: int) -> None:
    engine = Engine(64)
    engine.request("alice", 128)
    others = [engine.request(key, count) for key in ("b", "c", "d", "e")]
    assert [other.submitted for other in others] == [1] * 4
    assert len(engine.sequences) == 64


def test_two_requests_of_many_sequences_share_the_places() -> None:
    engine = Engine(32)
    alice = engine.request("alice", 500, steps=3)
    for _ in range(2):
        engine.step()
    bob = engine.request("bob", 500, steps=3)
    while bob.submitted < 100:
        before = alice.submitted, bob.submitted
        engine.step()
        # What ends is given out in turns.
        assert abs((alice.submitted - before[0]) - (bob.submitted - before[1])) <= 2
    engine.check()


def test_without_several_keys_a_request_takes_all_its_places_at_once() -> None:
    engine = Engine(4)
    engine.several = False
    request = engine.request("", 128)
    waits = engine.request("", 9)
    assert (request.submitted, waits.submitted) == (128, 0)
    request.leave(done=False)
    assert waits.submitted == 9
    assert engine.waiting == [0, 0]


def test_what_is_left_of_a_request_starts_when_there_is_one_key_again() -> None:
    engine = Engine(16)
    request = engine.request("alice", 40, steps=1)
    assert request.submitted == 15
    engine.several = False
    engine.step()
    assert request.submitted == 40


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 4), st.integers(0, 60)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.just("step"),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 40), st.sampled_from([0.0, 0.0625, 0.5]))
def test_each_sequence_is_submitted_once_and_no_place_is_lost(steps: list[Any], capacity: int, share: float) -> None:
    engine = Engine(capacity, share)
    for step in steps:
        if step == "step":
            engine.step()
        elif step[0] == "enter":
            _, key, count, needed, breaks_at = step
            # Some cannot be submitted any more at their later sequences.
            try:
                engine.request(key, count, steps=needed, breaks_at=breaks_at or 5)
            except ValueError:
                assert (breaks_at or 5) < count
        else:
            live = [request for request in engine.requests if not request.ended]
            if step[1] < len(live):
                live[step[1]].leave(done=False)
        engine.check()
    while engine.sequences:
        engine.step()
        engine.check()
    assert all(request.ended for request in engine.requests)
    for request in engine.requests:
        # All of it, or it was given up.
        assert request.submitted == request.count or request.finished < request.count
    assert (engine.admission.running, engine.admission.waiting, engine.waiting) == (0, 0, [0, 0])
    # Every key is as one that has nothing here.
    assert not any(engine.admission._running_of.values())


def test_a_request_that_leaves_in_the_middle_gives_everything_back() -> None:
    engine = Engine(16)
    alice = engine.request("alice", 100)
    bob = engine.request("bob", 30)
    assert (alice.submitted, bob.submitted) == (15, 1)
    assert engine.waiting == [0, 0]
    alice.leave(done=False)
    engine.check()
    assert (alice.submitted, bob.submitted) == (15, 15)
    bob.leave(done=False)
    assert (engine.admission.running, engine.admission.waiting) == (0, 0)


def test_a_later_part_that_cannot_be_submitted_harms_no_other() -> None:
    engine = Engine(16)
    broken = engine.request("alice", 100, steps=2, breaks_at=20)
    bob = engine.request("bob", 20, steps=3)
    while not broken.ended:
        engine.step()
        engine.check()
    assert broken.submitted <= 20
    while not bob.ended:
        engine.step()
    assert bob.finished == 20


def test_a_lower_priority_goes_before_the_rest_of_a_request_of_its_key() -> None:
    engine = Engine(16)
    alice = engine.request("alice", 100, steps=2)
    urgent = engine.request("alice", 3, steps=2, priority=-1)
    engine.step()
    engine.step()
    assert (urgent.submitted, alice.submitted) == (3, 15 + 12)


def test_none_of_a_request_whose_time_passes_while_it_waits_is_submitted() -> None:
    engine = Engine(16)
    alice = engine.request("alice", 15, steps=9)
    late = engine.request("alice", 40, timeout_s=5)
    after = engine.request("alice", 2, steps=1)
    while alice.finished < 15:
        engine.step()
    assert isinstance(late.error, RequestDeadlineError)
    assert (late.submitted, late.error.waited, after.submitted) == (0, True, 2)
    assert (engine.waiting, engine.admission.waiting) == ([0, 0], 0)


def test_a_request_in_parts_is_not_ended_for_what_is_expected() -> None:
    engine = Engine(16)
    # All answers take longer than its time; it has begun, though, and its own deadline ends it.
    for _ in range(30):
        engine.request("alice", steps=20)
    while engine.sequences:
        engine.step()
    request = engine.request("alice", 40, steps=2, timeout_s=100)
    engine.now += 99.5
    for one in list(engine.sequences)[:5]:
        one.end()
    assert (request.error, request.submitted) == (None, 20)


def test_a_server_that_stops_ends_what_has_started_in_part() -> None:
    engine = Engine(16)
    alice, bob = engine.request("alice", 100), engine.request("alice", 2)
    whole = engine.request("bob")
    engine.admission.close(OverloadedError("The server is shutting down."))
    assert [str(request.error) for request in (alice, bob)] == ["The server is shutting down."] * 2
    assert whole.error is None
    assert (engine.waiting, engine.admission.waiting, engine.admission.running) == ([0, 0], 0, 1)


def test_the_time_of_an_answer_is_not_that_of_all_parts() -> None:
    times = []
    for count in (15, 150):
        engine = Engine(16)
        request = engine.request("alice", count, steps=10)
        while not request.ended:
            engine.step()
        service = engine.admission._service
        times.append((engine.now, service.most_s("alice", 10), service.share_per_step(15, 0)))
    (whole_at, *whole), (parts_at, *parts) = times
    assert parts_at - 100 == 10 * (whole_at - 100)
    assert parts == whole


def test_an_error_of_one_part_is_an_engine_error_of_the_request() -> None:
    engine = Engine(16)
    request = engine.request("alice", 30, steps=1)
    # A job that does not leave by itself at an exception.
    request.submit = _broken  # type: ignore[method-assign]
    engine.step()
    assert isinstance(request.error, EngineError)
    assert (engine.admission.waiting, engine.admission.running) == (0, 0)


def _broken(count: int) -> None:
    raise ValueError("no engine")
