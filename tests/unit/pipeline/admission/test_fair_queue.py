from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.fair_queue import QUANTUM_TOKENS, FairQueue
from openai_bls.pipeline.admission.ticket import Ticket

COSTS = st.integers(1, 20 * QUANTUM_TOKENS)
PRIORITIES = st.sampled_from([0, 0, 0, -1, 1, -(2**63)])
KEYS = st.sampled_from("abcde")
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.25, "d": 1.0, "e": 7.5}
MOST = 20 * QUANTUM_TOKENS
ADMISSION = Admission(lambda: 1, OpenAiBlsSettings())


def ticket(key: str, cost_tokens: int, prompt_tokens: int = 1, priority: int = 0) -> Ticket:
    return Ticket(ADMISSION, key, prompt_tokens, cost_tokens, 1, 1, None, priority)


def popped(queue: FairQueue) -> Ticket:
    part = queue.pop()
    assert part is not None
    return part.ticket


def drained(queue: FairQueue) -> list[Ticket]:
    items = []
    while queue.count:
        items.append(popped(queue))
    assert queue.pop() is None
    return items


@given(st.lists(st.tuples(KEYS, COSTS, PRIORITIES)))
def test_everything_comes_out_once_and_a_keys_items_by_priority_and_in_order(
    pushed: list[tuple[str, int, int]],
) -> None:
    queue = FairQueue(WEIGHTS.__getitem__)
    items = [ticket(key, cost, priority=priority) for key, cost, priority in pushed]
    for item in items:
        queue.push(item)
    out = drained(queue)
    for key in "abcde":
        own = [item for item in items if item.key == key]
        # Python's sort is stable.
        assert [item for item in out if item.key == key] == sorted(own, key=lambda item: item.priority)
    assert (queue.count, queue.prompt_tokens, queue.cost_tokens) == (0, 0, 0)


@given(st.lists(st.one_of(st.tuples(KEYS, COSTS, PRIORITIES), st.just("pop"), st.integers(0, 9)), max_size=60))
def test_the_totals_are_those_of_what_waits(steps: list[tuple[str, int, int] | str | int]) -> None:
    queue = FairQueue(WEIGHTS.__getitem__)
    waiting: list[Ticket] = []
    for step in steps:
        if isinstance(step, tuple):
            waiting.append(ticket(*step[:2], prompt_tokens=step[1] // 2, priority=step[2]))
            queue.push(waiting[-1])
        elif step == "pop":
            part = queue.pop()
            # It is never empty-handed while something waits.
            assert (part is None) == (not waiting)
            if part is not None:
                waiting.remove(part.ticket)
        elif isinstance(step, int) and step < len(waiting):
            item = waiting.pop(step)
            assert queue.remove(item)
            assert not queue.remove(item)
        assert len(queue) == len(waiting)
        assert queue.cost_tokens == sum(item.cost_tokens for item in waiting)
        assert queue.prompt_tokens == sum(item.prompt_tokens for item in waiting)
        assert queue.weights == sum(WEIGHTS[key] for key in {item.key for item in waiting})
        for key, priority in itertools.product({item.key for item in waiting}, range(-2, 3)):
            ahead = [item.cost_tokens for item in waiting if item.key == key and item.priority <= priority]
            own = queue.of(key)
            assert own is not None
            assert own.cost_ahead(priority) == sum(ahead)


@given(
    st.lists(st.tuples(KEYS, COSTS, PRIORITIES, st.integers(1, 40)), max_size=20),
    st.lists(st.integers(1, 12), min_size=1),
)
def test_items_come_out_in_parts_that_are_exactly_the_whole(
    pushed: list[tuple[str, int, int, int]], most: list[int]
) -> None:
    queue = FairQueue(WEIGHTS.__getitem__)
    items = [Ticket(ADMISSION, key, 1, cost, 1, count, None, priority) for key, cost, priority, count in pushed]
    for item in items:
        queue.push(item)
    sequences: Counter[Ticket] = Counter()
    tokens: Counter[Ticket] = Counter()
    for at_once in itertools.cycle(most):
        part = queue.pop(at_once)
        if part is None:
            break
        # What is left of an item comes before all that come after it in its key.
        assert part.ticket == min(
            (item for item in items if item.key == part.ticket.key and sequences[item] < item.sequences),
            key=lambda item: item.priority,
        )
        assert 1 <= part.sequences <= at_once
        sequences[part.ticket] += part.sequences
        tokens[part.ticket] += part.cost_tokens
        waiting = [item for item in items if sequences[item] < item.sequences]
        assert queue.count == len(waiting)
        assert queue.cost_tokens == sum(item.cost_tokens - tokens[item] for item in waiting)
    assert sequences == {item: item.sequences for item in items}
    assert tokens == {item: item.cost_tokens for item in items}
    assert (queue.count, queue.prompt_tokens, queue.cost_tokens) == (0, 0, 0)


@given(st.integers(2, 128), st.integers(1, 128), st.integers(1, 5))
def test_keys_take_turns_by_sequences_however_many_a_request_has(many: int, few: int, quanta: int) -> None:
    queue = FairQueue()
    for key, count in (("a", many), ("b", few)):
        queue.push(Ticket(ADMISSION, key, 1, count * quanta * QUANTUM_TOKENS, 1, count, None))
    taken: Counter[str] = Counter()
    while all(taken[key] < count for key, count in (("a", many), ("b", few))):
        part = queue.pop(1)
        assert part is not None
        taken[part.ticket.key] += part.sequences
        assert abs(taken["a"] - taken["b"]) <= 1


@given(st.lists(st.tuples(KEYS, PRIORITIES), max_size=30))
def test_a_priority_takes_nothing_from_other_keys(pushed: list[tuple[str, int]]) -> None:
    with_priorities, plain = FairQueue(), FairQueue()
    for key, priority in pushed:
        # The items of a key cost the same, so that its turns do not depend on their order.
        cost = 1 + ord(key) * 7 % 500
        with_priorities.push(ticket(key, cost, priority=priority))
        plain.push(ticket(key, cost))
    assert [item.key for item in drained(with_priorities)] == [item.key for item in drained(plain)]


@given(st.data())
def test_keys_that_always_wait_share_by_their_weights(data: st.DataObject) -> None:
    keys = data.draw(st.lists(KEYS, min_size=2, max_size=5, unique=True))
    queue = FairQueue(WEIGHTS.__getitem__)
    for key in keys:
        for _ in range(3):
            queue.push(ticket(key, data.draw(COSTS)))
    served: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(1, 60))):
        item = popped(queue)
        served[item.key] += item.cost_tokens
        queue.push(ticket(item.key, data.draw(COSTS)))
    # By one request too many, and by one round.
    shares = {key: served[key] / WEIGHTS[key] for key in keys}
    for one in keys:
        for other in keys:
            slack = MOST / WEIGHTS[one] + MOST / WEIGHTS[other] + 3 * QUANTUM_TOKENS
            assert shares[one] - shares[other] <= slack


@given(st.integers(1, 500), COSTS)
def test_a_key_that_comes_is_served_next_whatever_waits(others: int, cost: int) -> None:
    queue = FairQueue()
    for _ in range(others + 1):
        queue.push(ticket("a", cost))
    popped(queue)
    queue.push(ticket("b", MOST))
    # A single key that was new itself may still have the rest of its first quantum.
    assert "b" in [popped(queue).key for _ in range(min(others, 1 + QUANTUM_TOKENS // cost) + 1)]


def test_a_key_that_comes_and_goes_takes_no_more_than_its_share() -> None:
    queue = FairQueue()
    for _ in range(100):
        queue.push(ticket("a", QUANTUM_TOKENS))
    popped(queue)
    order = ""
    for _ in range(40):
        if queue.of("b") is None or not queue.of("b").count:  # type: ignore[union-attr]
            queue.push(ticket("b", QUANTUM_TOKENS))
        order += popped(queue).key
    assert order.count("b") == pytest.approx(20, abs=2)


def test_a_charge_is_paid_back_in_later_rounds() -> None:
    queue = FairQueue()
    for _ in range(100):
        queue.push(ticket("a", QUANTUM_TOKENS))
        queue.push(ticket("b", QUANTUM_TOKENS))
    queue.charge("a", 10 * QUANTUM_TOKENS)
    queue.charge("nobody", 5)
    served = Counter(popped(queue).key for _ in range(30))
    assert served["b"] - served["a"] == pytest.approx(10, abs=2)


def test_large_debts_take_few_steps() -> None:
    queue = FairQueue()
    for key in "abcd":
        queue.push(ticket(key, 10**9))
        queue.push(ticket(key, 10**9))
    assert Counter(item.key for item in drained(queue)[:4]) == Counter("abcd")
