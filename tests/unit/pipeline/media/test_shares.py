"""Shares of a pool: no key and no host fills it, and who waits is served in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.errors import OverloadedError
from openai_bls.pipeline.media.shares import Limits, Shares

LIMITS = Limits(total=6, per_key=4, per_host=3, per_key_and_host=2, waiting_per_key=5, waiting_per_key_and_host=3)


class Users:
    """Users of a pool, in the order in which they come."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.pool = Shares(limits, "images")
        self.inside: list[tuple[str, str, int]] = []
        self.tasks: list[tuple[tuple[str, str, int], asyncio.Task[None], asyncio.Event]] = []

    async def _use(self, user: tuple[str, str, int], end: asyncio.Event) -> None:
        async with self.pool.place(*user[:2]):
            self.inside.append(user)
            try:
                await end.wait()
            finally:
                self.inside.remove(user)

    async def come(self, key: str, host: str, count: int = 1) -> None:
        for _ in range(count):
            user, end = (key, host, len(self.tasks)), asyncio.Event()
            self.tasks.append((user, asyncio.ensure_future(self._use(user, end)), end))
        await settled()

    async def go(self, which: Iterable[int]) -> None:
        for number in which:
            self.tasks[number][2].set()
        await settled()

    async def give_up(self, number: int) -> None:
        self.tasks[number][1].cancel()
        await settled()

    @property
    def refused(self) -> int:
        return sum(
            task.done() and not task.cancelled() and isinstance(task.exception(), OverloadedError)
            for _, task, _ in self.tasks
        )

    @property
    def waiting(self) -> list[tuple[str, str, int]]:
        return [user for user, task, _ in self.tasks if not task.done() and user not in self.inside]

    async def end(self) -> None:
        for _, task, _ in self.tasks:
            task.cancel()
        await asyncio.gather(*(task for _, task, _ in self.tasks), return_exceptions=True)
        assert (self.pool.running, self.pool.waiting) == (0, 0)


async def settled() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.tuples(st.just("come"), st.sampled_from("abc"), st.sampled_from("xyz"))
    | st.tuples(st.sampled_from(["go", "give up"]), st.integers(0, 40), st.just("")),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_places_are_within_their_shares_and_none_is_kept_from_who_may_have_it(
    steps: list[tuple[str, str, str]],
) -> None:
    async def main() -> None:
        users = Users()
        for step, first, second in steps:
            if step == "come":
                await users.come(first, second)
            elif int(first) < len(users.tasks):
                await (users.go([int(first)]) if step == "go" else users.give_up(int(first)))
            inside = [user[:2] for user in users.inside]
            of_key, of_host = Counter(key for key, _ in inside), Counter(host for _, host in inside)
            of_both = Counter(inside)
            assert len(inside) == users.pool.running <= LIMITS.total
            assert max(of_key.values(), default=0) <= LIMITS.per_key
            assert max(of_host.values(), default=0) <= LIMITS.per_host
            assert max(of_both.values(), default=0) <= LIMITS.per_key_and_host
            waiting = Counter(user[:2] for user in users.waiting)
            assert sum(waiting.values()) == users.pool.waiting
            assert max(waiting.values(), default=0) <= LIMITS.waiting_per_key_and_host
            for key, host in waiting:
                assert (
                    len(inside) == LIMITS.total
                    or of_key[key] == LIMITS.per_key
                    or of_host[host] == LIMITS.per_host
                    or of_both[key, host] == LIMITS.per_key_and_host
                )
        await users.end()

    asyncio.run(main())


async def test_a_full_host_leaves_room_for_another_host_and_another_key() -> None:
    users = Users()
    await users.come("a", "slow", 9)
    # Two have a place, three wait, and only what is beyond is refused.
    assert (len(users.inside), len(users.waiting), users.refused) == (2, 3, 4)
    await users.come("a", "quick")
    await users.come("b", "slow")
    await users.come("b", "quick")
    assert [user[:2] for user in users.inside[2:]] == [("a", "quick"), ("b", "slow"), ("b", "quick")]
    await users.end()


async def test_who_waits_is_served_in_turn_by_key() -> None:
    """Not in the order of arrival, in which many of one key come first."""
    users = Users(LIMITS._replace(total=1, waiting_per_key=9, waiting_per_key_and_host=9))
    await users.come("first", "x")
    await users.come("a", "x", 4)
    await users.come("b", "x", 2)
    order = []
    for _ in range(6):
        await users.go([users.inside[0][2]])
        order.append(users.inside[0][0])
    assert order == ["a", "b", "a", "b", "a", "a"]
    await users.end()


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_place_that_is_given_up_goes_to_the_next(is_given: bool) -> None:
    """Also at the very moment when it is given."""
    users = Users(LIMITS._replace(total=1))
    await users.come("a", "x", 3)
    if is_given:
        users.tasks[0][2].set()
        while users.inside:
            await asyncio.sleep(0)
    await users.give_up(1)
    if not is_given:
        await users.go([0])
    assert [user[2] for user in users.inside] == [2]
    await users.end()
