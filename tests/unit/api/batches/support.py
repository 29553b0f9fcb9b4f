"""Instances of the application that share a folder of batches, answered by a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from openai.types import Batch

from openai_bls.api.batches.endpoints import BatchHandlers
from openai_bls.api.batches.folder import Folder
from openai_bls.api.batches.records import ENDED, BatchRecord
from openai_bls.api.batches.runner import Runner
from openai_bls.core.engine import EngineStats
from tests.unit.api.http_support import application
from tests.unit.core_support import WAIT_S, Bench, engine_info, tiny_tokenizer, until

ID = "0" * 32
BATCH = {"endpoint": "/v1/completions", "completion_window": "24h"}


def request(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"prompt": custom_id, "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def requests(name: str, count: int) -> list[dict[str, Any]]:
    """Requests whose ids begin with `name`."""
    return [request(f"{name}{at}") for at in range(count)]


def jsonl(*lines: Any) -> bytes:
    return b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)


class Stats:
    """Statistics of an engine, which count how often the runner has asked whether sequences wait in it."""

    def __init__(self, waiting: int) -> None:
        self._waiting = waiting
        self.asked = 0

    @property
    def waiting(self) -> int:
        self.asked += 1
        return self._waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(EngineStats(1, self._waiting, 0.0, 0, 0), name)


class Place:
    """One instance and its client; the engine answers each request with "ok", unless it is held."""

    def __init__(self, folder: Path, *, held: bool = False, **settings: Any) -> None:
        self.folder = Folder(folder)
        self.bench = Bench(engine_info(max_batch_size=64), batches_dir=str(folder), **settings)
        self.app = application(self.bench)
        transport = httpx.ASGITransport(app=self.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self.held = held
        self.answered = 0
        """Number of the requests that the engine has answered, in the order in which they came."""

    @property
    def sent(self) -> list[str]:
        """`custom_id`s of the requests that the engine has had."""
        return [tiny_tokenizer().decode(request.prompt_token_ids) for request in self.bench.engine.requests]

    @property
    def in_flight(self) -> list[str]:
        """`custom_id`s of the requests that the engine has not answered."""
        return self.sent[self.answered :]

    def answer(self) -> None:
        """Let the engine answer the oldest request."""
        self.bench.engine.deliver(self.answered, "ok", "stop")
        self.answered += 1

    async def feed(self) -> None:
        while True:
            while not self.held and self.answered < len(self.bench.engine.requests):
                self.answer()
            await asyncio.sleep(0.001)

    def use_key(self, key: str) -> None:
        self.client.headers["authorization"] = f"Bearer {key}"

    async def upload(self, content: bytes, **fields: Any) -> httpx.Response:
        files = {"file": ("in.jsonl", content)}
        return await self.client.post("/v1/files", files=files, data={"purpose": "batch", **fields})

    async def create(self, *lines: Any, **body: Any) -> dict[str, Any]:
        uploaded = (await self.upload(jsonl(*lines))).json()
        asked = {**BATCH, "input_file_id": uploaded["id"], **body}
        created = await self.client.post("/v1/batches", json=asked)
        assert created.status_code == 200, created.text
        found: dict[str, Any] = created.json()
        Batch.model_validate(found)
        return found

    async def get(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(f"/v1/batches/{batch_id}")).json()
        Batch.model_validate(found)
        return found

    async def cancel(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.post(f"/v1/batches/{batch_id}/cancel")).json()
        return found

    async def until(self, batch_id: str, *statuses: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while (found := await self.get(batch_id))["status"] not in statuses:
                await asyncio.sleep(0.001)
        return found

    async def sending(self, *batch_ids: str) -> None:
        """Wait until the runner gives these batches turns: later than their records say that they are in progress."""
        await until(lambda: self._runner._running.keys() >= set(batch_ids))

    async def settled(self) -> None:
        """Wait until the runner neither opens nor closes a batch."""
        tasks, running = self._runner._tasks, self._runner._running
        # One without a request in flight, and without one that it may send, is about to be closed.
        await until(lambda: tasks.keys() == running.keys() and all(r.tasks or r.may_begin for r in running.values()))

    @property
    def _runner(self) -> Runner:
        (work,) = self.app.state.background
        runner: Runner = work.args[0].shared(BatchHandlers)._runner
        return runner

    async def ended(self, batch_id: str) -> dict[str, Any]:
        return await self.until(batch_id, *ENDED)

    def is_free(self, batch_id: str) -> bool:
        """True if no instance works on the batch."""
        with self.folder.locked(batch_id) as mine:
            return mine

    def record(self, batch_id: str) -> BatchRecord:
        found = self.folder.batch(batch_id)
        assert found is not None
        return found

    async def results(self, file_id: str | None) -> dict[str, Any]:
        if file_id is None:
            return {}
        content = (await self.client.get(f"/v1/files/{file_id}/content")).text
        found = [json.loads(line) for line in content.splitlines()]
        assert len({line["custom_id"] for line in found}) == len(found)
        return {line["custom_id"]: line for line in found}


@asynccontextmanager
async def served(folder: Path, *, held: bool = False, **settings: Any) -> AsyncIterator[Place]:
    place = Place(folder, held=held, **settings)
    tasks = [asyncio.ensure_future(work()) for work in (place.feed, *place.app.state.background)]
    try:
        yield place
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await place.client.aclose()
