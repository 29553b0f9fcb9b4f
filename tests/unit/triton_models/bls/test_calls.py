from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import numpy as np
import pytest

from openai_bls.transport.model_calls import Array, Arrays, ModelCallError, ModelTimeoutError, ModelUnavailableError
from openai_bls.triton_models.bls.calls import MAX_CALLS, MAX_CALLS_PER_MODEL, BlsCalls
from tests.unit.core_support import WAIT_S, until

X = {"X": np.array([1], np.int32)}
LONG = WAIT_S
SHORT = 0.05


class Server:
    """Models of a server: `held` ones answer when they are released, `echo` its input, others not at all."""

    def __init__(self) -> None:
        self.released: dict[str, threading.Event] = {}
        self.running: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.most_together = 0
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Arrays:
        with self._lock:
            self.calls += 1
            self.running[model] = self.running.get(model, 0) + 1
            self.most[model] = max(self.most.get(model, 0), self.running[model])
            self.most_together = max(self.most_together, sum(self.running.values()))
            held = self.released.setdefault(model, threading.Event()) if model.startswith("held") else None
        try:
            if held is not None:
                assert held.wait(WAIT_S)
            elif model == "broken":
                raise ZeroDivisionError("at /home/me/model.py")
            elif model != "echo":
                raise ModelUnavailableError(f"Model '{model}' is not ready.")
            return dict.fromkeys(outputs, inputs["X"])
        finally:
            with self._lock:
                self.running[model] -= 1

    def release(self, model: str) -> None:
        with self._lock:
            self.released.setdefault(model, threading.Event()).set()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    for event in server.released.values():
        event.set()


@pytest.fixture
async def calls(server: Server) -> AsyncIterator[BlsCalls]:
    calls = BlsCalls(asyncio.get_running_loop(), server)
    yield calls
    calls.close()


async def test_an_answer(calls: BlsCalls) -> None:
    answer = await calls.call("echo", X, ["Y", "Z"], timeout_s=LONG)
    assert {name: array.tolist() for name, array in answer.items()} == {"Y": [1], "Z": [1]}


async def test_errors_keep_their_kind_and_carry_no_frames(calls: BlsCalls, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelUnavailableError, match="'missing'"):
        await calls.call("missing", X, ["Y"], timeout_s=LONG)
    with caplog.at_level(logging.ERROR), pytest.raises(ModelCallError, match=r"'broken'.* log") as raised:
        await calls.call("broken", X, ["Y"], timeout_s=LONG)
    assert "/home/me" not in str(raised.value)
    assert "/home/me" in caplog.text
    # The thread's frames would keep the backend's own objects.
    functions = [entry.name for entry in raised.traceback]
    assert "__call__" not in functions
    assert "_serve" not in functions
    assert raised.value.__context__ is None


async def test_a_model_has_a_share_of_the_calls_and_all_have_a_limit(server: Server, calls: BlsCalls) -> None:
    names = [f"held-{number}" for number in range(MAX_CALLS // MAX_CALLS_PER_MODEL + 1)]
    open_calls = [asyncio.create_task(calls.call(name, X, ["Y"], timeout_s=LONG)) for name in names for _ in range(20)]
    await until(lambda: sum(server.running.values()) == MAX_CALLS)
    for name in names:
        server.release(name)
    assert len(await asyncio.gather(*open_calls)) == len(open_calls)
    assert server.most_together == MAX_CALLS
    assert max(server.most.values()) == MAX_CALLS_PER_MODEL


async def test_a_model_that_hangs_is_refused_until_it_answers_and_holds_up_no_other(
    server: Server, calls: BlsCalls
) -> None:
    hanging = [calls.call("held", X, ["Y"], timeout_s=SHORT) for _ in range(MAX_CALLS_PER_MODEL + 3)]
    errors = await asyncio.gather(*hanging, return_exceptions=True)
    assert [type(error) for error in errors] == [ModelTimeoutError] * len(hanging)
    assert server.calls == MAX_CALLS_PER_MODEL
    with pytest.raises(ModelTimeoutError, match=f"'held' .* {MAX_CALLS_PER_MODEL} calls"):
        await calls.call("held", X, ["Y"], timeout_s=LONG)
    assert (await calls.call("echo", X, ["Y"], timeout_s=LONG))["Y"] == 1
    server.release("held")
    await until(lambda: not server.running["held"])
    await until(lambda: not calls._models)
    assert (await calls.call("held", X, ["Y"], timeout_s=LONG))["Y"] == 1
    # Those that waited were never made.
    assert server.calls == MAX_CALLS_PER_MODEL + 2


async def test_a_caller_that_goes_away_leaves_the_queue_but_not_a_running_call(server: Server, calls: BlsCalls) -> None:
    open_calls = [
        asyncio.create_task(calls.call("held", X, ["Y"], timeout_s=LONG)) for _ in range(MAX_CALLS_PER_MODEL + 1)
    ]
    await until(lambda: server.running.get("held") == MAX_CALLS_PER_MODEL)
    for task in (open_calls[0], open_calls[-1]):
        task.cancel()
    server.release("held")
    answers = await asyncio.gather(*open_calls, return_exceptions=True)
    cancelled = [isinstance(answer, asyncio.CancelledError) for answer in answers]
    assert cancelled == [True] + [False] * (MAX_CALLS_PER_MODEL - 1) + [True]
    assert server.calls == MAX_CALLS_PER_MODEL
    await until(lambda: not calls._models)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("bls-")}


async def test_the_end_fails_what_is_open_and_what_comes(server: Server, calls: BlsCalls) -> None:
    before = threads()
    open_calls = [
        asyncio.create_task(calls.call("held", X, ["Y"], timeout_s=LONG)) for _ in range(MAX_CALLS_PER_MODEL + 1)
    ]
    await until(lambda: server.running.get("held") == MAX_CALLS_PER_MODEL)
    calls.close()
    errors = await asyncio.gather(*open_calls, return_exceptions=True)
    assert [type(error) for error in errors] == [ModelUnavailableError] * len(open_calls)
    with pytest.raises(ModelUnavailableError, match="shutting down"):
        await calls.call("echo", X, ["Y"], timeout_s=LONG)
    server.release("held")
    await until(lambda: not threads() - before)


async def test_streams_are_another_transports(calls: BlsCalls) -> None:
    with pytest.raises(ModelUnavailableError):
        calls.stream("echo", X, ["Y"], timeout_s=LONG)
