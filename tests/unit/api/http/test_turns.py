from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from itertools import pairwise

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.http.listening.acceptor import Acceptor
from openai_bls.api.http.request_turns import RequestTurns

KEYS = st.sampled_from(["", "alice", "bob", "carol"])
CONNECTIONS = 60


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=30))
def test_one_request_begins_at_a_time_and_the_keys_take_turns(asked: list[tuple[str, bool]]) -> None:
    """Those that are cancelled while they wait are passed over."""
    begun: list[tuple[int, str, int]] = []
    turn = 0

    async def begin(turns: RequestTurns, key: str, number: int) -> None:
        await turns.wait(key)
        begun.append((turn, key, number))

    async def main() -> None:
        nonlocal turn
        turns = RequestTurns()
        tasks = [asyncio.ensure_future(begin(turns, key, number)) for number, (key, _) in enumerate(asked)]
        await asyncio.sleep(0)
        for task, (_, leaves) in zip(tasks, asked, strict=True):
            if leaves:
                task.cancel()
        while not all(task.done() for task in tasks):
            turn += 1
            await asyncio.sleep(0)
        # Nobody waits any more: the next one goes at once.
        await asyncio.sleep(0)
        late = asyncio.ensure_future(turns.wait("late"))
        await asyncio.sleep(0)
        assert late.done()

    asyncio.run(main())
    stayed = {number for number, (_, leaves) in enumerate(asked) if not leaves} | ({0} if asked else set())
    assert {number for _, _, number in begun} == stayed
    assert all(before < after for (before, *_), (after, *_) in pairwise(begun))
    for key in {key for _, key, _ in begun}:
        numbers = [number for _, other, number in begun if other == key]
        assert numbers == sorted(numbers)
    waited = begun[1:]
    left = Counter(key for _, key, _ in waited)
    # Of two keys that both still have requests none begins twice before the other has begun once.
    for at, (_, key, _) in enumerate(waited):
        left[key] -= 1
        waiting = {other for other, count in left.items() if count and other != key}
        following = [other for _, other, _ in waited[at + 1 :]]
        if key in following:
            assert waiting <= set(following[: following.index(key)])


def test_all_that_wait_are_accepted_in_few_turns_of_the_event_loop() -> None:
    connected = 0

    class Counting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal connected
            connected += 1

    async def main() -> int:
        with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as listener, contextlib.ExitStack() as clients:
            for _ in range(CONNECTIONS):
                clients.enter_context(socket.create_connection(listener.getsockname()))
            acceptor, turns = Acceptor(listener, Counting, lambda preparing: True), 0
            while connected < CONNECTIONS:
                turns += 1
                await asyncio.sleep(0)
            acceptor.close()
            return turns

    assert uvloop.run(main()) < CONNECTIONS / 4
