"""Shared memory of the inputs of calls: all of them have room together, and no key's wait for another's."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.transport.model_calls import Array, Arrays, InputTooLargeError, ModelTimeoutError
from openai_bls.triton_models.bls.calls import SMALL_BYTES, BlsCalls, shared_memory_room
from tests.unit.core_support import WAIT_S, until

ROOM = 16 * SMALL_BYTES
SHORT = 0.05


def of(size: int) -> dict[str, Array]:
    """Inputs of so many bytes, half of them text."""
    return {"X": np.zeros(size - size // 2, np.uint8), "text": np.array([b"x" * (size // 2)], np.object_)}


class Server:
    """A model that answers once it is let, and the bytes that are with it."""

    def __init__(self, *, released: bool = True) -> None:
        self.released = threading.Event()
        if released:
            self.released.set()
        self.sizes: list[int] = []
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Arrays:
        size = inputs["X"].size + len(inputs["text"][0])
        with self._lock:
            self.sizes.append(size)
            self.most = max(self.most, sum(size for size in self.sizes if size > SMALL_BYTES))
        try:
            assert model == "quick" or self.released.wait(WAIT_S)
            return {"size": np.array([size])}
        finally:
            with self._lock:
                self.sizes.remove(size)

    async def stream(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float
    ) -> AsyncGenerator[Arrays, None]:
        for _ in range(2):
            yield await asyncio.to_thread(self, model, inputs, outputs)


async def answer(calls: BlsCalls, size: int, key: str, *, model: str = "m", timeout_s: float = WAIT_S) -> int:
    return int((await calls.call(model, of(size), ["size"], timeout_s=timeout_s, key=key))["size"][0])


async def streamed(calls: BlsCalls, size: int, key: str, timeout_s: float = WAIT_S) -> int:
    responses = [r async for r in calls.stream("m", of(size), ["size"], timeout_s=timeout_s, key=key)]
    assert len(responses) == 2
    return int(responses[0]["size"][0])


@given(st.lists(st.tuples(st.integers(0, ROOM), st.sampled_from("abc"), st.booleans()), max_size=30))
def test_what_runs_together_has_room(asked: list[tuple[int, str, bool]]) -> None:
    async def ask() -> None:
        server = Server()
        calls = BlsCalls(asyncio.get_running_loop(), server, server.stream, ROOM)
        work = [(streamed if streams else answer)(calls, size, key) for size, key, streams in asked]
        assert await asyncio.gather(*work) == [size for size, _, _ in asked]
        assert server.most <= ROOM
        assert (calls._held.held, dict(calls._models)) == (0, {})
        calls.close()

    asyncio.run(ask())


async def test_a_key_waits_for_room_that_another_has() -> None:
    server = Server(released=False)
    calls = BlsCalls(asyncio.get_running_loop(), server, server.stream, ROOM)
    alice = [asyncio.create_task(answer(calls, ROOM // 3, "alice")) for _ in range(20)]
    await until(lambda: len(server.sizes) == 1)
    # Beside what waits: another key, and what is small.
    assert await answer(calls, ROOM // 4, "bob", model="quick") == ROOM // 4
    assert await answer(calls, SMALL_BYTES, "alice", model="quick") == SMALL_BYTES
    for work in (answer(calls, ROOM // 3, "alice", timeout_s=SHORT), streamed(calls, ROOM // 3, "alice", SHORT)):
        with pytest.raises(ModelTimeoutError):
            await work
    leaving = asyncio.create_task(streamed(calls, ROOM // 3, "alice"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert len(server.sizes) == 1
    server.released.set()
    assert await asyncio.gather(*alice) == [ROOM // 3] * 20
    await until(lambda: not calls._held.held)
    calls.close()


async def test_what_never_has_room_is_refused_and_what_fills_it_is_not() -> None:
    server = Server()
    calls = BlsCalls(asyncio.get_running_loop(), server, server.stream, ROOM)
    assert await answer(calls, ROOM, "alice") == await streamed(calls, ROOM, "alice") == ROOM
    for work in (answer(calls, ROOM + 1, "alice"), streamed(calls, ROOM + 1, "alice")):
        with pytest.raises(InputTooLargeError) as caught:
            await work
        assert caught.value.limit == ROOM
    calls.close()


def test_the_room_is_a_part_of_what_is_free(tmp_path: Path) -> None:
    usage = os.statvfs(tmp_path)
    free = usage.f_bavail * usage.f_frsize
    assert 0 < shared_memory_room(2, tmp_path) * 6 <= free * 1.01
