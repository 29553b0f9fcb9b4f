"""What other models do for a request whose API key is taken out of the file: it ends, as a generation does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.errors import AuthenticationError
from openai_bls.core.keys import watched_files
from openai_bls.transport.model_calls import Array, Arrays
from tests.unit.api import guard_support
from tests.unit.api.guard_support import CHAT, CHAT_PATH
from tests.unit.core_support import WAIT_S, ask, events, until
from tests.unit.pipeline.task_models.task_support import model

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddings": ("/v1/embeddings", {"model": "embeddings", "input": ["a"] * 20}),
    "rerank": ("/v1/rerank", {"model": "rerank", "query": "a", "documents": ["b"]}),
    "score": ("/v1/score", {"model": "score", "text_1": "a", "text_2": "b"}),
    "classify": ("/v1/moderations", {"model": "classify", "input": "a"}),
    "chat": (CHAT_PATH, {"model": "chat", **CHAT}),
    "chat as a stream": (CHAT_PATH, {"model": "chat", **CHAT, "stream": True}),
    "streamed chat": (CHAT_PATH, {"model": "streamed", **CHAT, "stream": True}),
}


class Held:
    """Models that never answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.given_up = 0

    async def __call__(self, inputs: Mapping[str, Array]) -> Arrays:
        self.asked += 1
        try:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        finally:
            self.given_up += 1

    async def stream(self, inputs: Mapping[str, Array]) -> AsyncIterator[Arrays]:
        yield await self(inputs)


class Place(guard_support.Place):
    """The application with keys of alice and bob; without a guard unless `settings` name one."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._keys = folder / "keys"
        self._keys.write_text("alice: a\nbob: b\n")
        super().__init__(**{"guard_before": "", "guard_after": "", "api_keys_file": str(self._keys), **settings})
        self.look = self.bench.service.removed_keys.look

    def send(self, path: str, body: Any, key: str = "a") -> asyncio.Task[Any]:
        return asyncio.ensure_future(ask(self.app, "POST", path, body, [("x-api-key", key)]))

    def remove_alice(self) -> None:
        self._keys.write_text("bob: b\n")
        self.look()
        self.look()

    async def end(self, task: asyncio.Task[Any]) -> None:
        """Wait for the refusal of a request that was in progress."""
        answered = await asyncio.wait_for(task, WAIT_S)
        if answered.status == 200:
            (event,) = events(answered.body)
            error = json.loads(event)["error"]
        else:
            assert answered.status == 401
            error = answered.json()["error"]
        assert error["code"] == "invalid_api_key"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_INTERVAL_S", 0.0)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_calls_of_task_models_end(tmp_path: Path, kind: str) -> None:
    """Those of the key, and no others."""
    place, held = Place(tmp_path), Held()
    decoupled = {"model_transaction_policy": {"decoupled": True}}
    names = ("embeddings", "rerank", "score", "classify", "chat")
    found = [model(name, name) for name in names]
    place.bench.service.models.tasks.replace([*found, model("chat", "streamed", max_batch_size=0, **decoupled)])
    place.bench.model_calls.models = dict.fromkeys(names, held)
    place.bench.model_calls.streams = {"streamed": held.stream}
    ended = place.send(*REQUESTS[kind], key="a")
    await until(lambda: held.asked)
    asked = 2 * held.asked
    other = place.send(*REQUESTS[kind], key="b")
    await until(lambda: held.asked == asked)
    place.remove_alice()
    await place.end(ended)
    await until(lambda: held.given_up == asked / 2)
    (record,) = place.bench.records
    assert (record.key, type(record.outcome)) == ("alice", AuthenticationError)
    assert not other.done()
    assert place.bench.service.in_progress == 1
    other.cancel()
    await until(lambda: not place.bench.service.removed_keys.lives)


async def test_embeddings_of_an_engine_end(tmp_path: Path) -> None:
    place = Place(tmp_path)
    task = place.send("/v1/embeddings", {"input": ["a", "b"]})
    await until(lambda: len(place.bench.engine.requests) == 2)
    place.remove_alice()
    await place.end(task)
    assert len(place.bench.engine.cancelled) == 2


@pytest.mark.parametrize("hook", ["before", "after"])
async def test_a_guard_that_a_request_waits_for(tmp_path: Path, hook: str) -> None:
    place = Place(tmp_path, guard_before="watch", guard_after="watch")
    guard = place.guard
    guard.hold[hook] = asyncio.get_running_loop().create_future()
    task = place.send(CHAT_PATH, CHAT)
    if hook == "after":
        await until(lambda: place.bench.engine.requests)
        place.bench.engine.deliver(0, "ok", "stop")
    await until(lambda: hook in guard.hooks())
    place.remove_alice()
    await place.end(task)
    assert place.metrics()[hook, "cancelled"] == 1
    assert place.bench.service.in_progress == 0
    assert not place.bench.service.removed_keys.lives


async def test_what_a_guard_is_told_of_an_answer_that_has_gone_out(tmp_path: Path) -> None:
    """Nobody waits for it, and it is the operator's."""
    place = Place(tmp_path, guard_after="watch")
    guard = place.guard
    held = guard.hold["after"] = asyncio.get_running_loop().create_future()
    task = place.send(CHAT_PATH, {**CHAT, "stream": True})
    await until(lambda: place.bench.engine.requests)
    place.bench.engine.deliver(0, "ok", "stop")
    await task
    await until(guard.hooks)
    place.remove_alice()
    held.set_result(None)
    await until(lambda: place.bench.service.in_progress == 0)
    assert place.metrics() == {("after", "passed"): 1}


async def test_a_client_that_goes_in_the_same_turn(tmp_path: Path) -> None:
    """Nobody is there to be told of an error, wherever a task tells how often it was cancelled."""
    place = Place(tmp_path)
    keys = place.bench.service.removed_keys
    for gone in (False, True):

        async def work() -> None:
            with keys.while_key_lasts("alice"):
                await asyncio.get_running_loop().create_future()

        task = asyncio.ensure_future(work())
        await until(lambda: keys.lives)
        place.remove_alice()
        if gone:
            task.cancel()
        tells = gone and sys.version_info >= (3, 11)
        with pytest.raises(asyncio.CancelledError if tells else AuthenticationError):
            await task
        assert not keys.lives
