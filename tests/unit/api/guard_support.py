"""The application with a guard, a model whose answers the test makes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from starlette.applications import Starlette

from openai_bls.core.engine_types import GenerationRequest
from openai_bls.transport.model_calls import Array, Arrays
from tests.unit.api.http_support import application
from tests.unit.core_support import WAIT_S, Answered, Bench, ask, until

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
CHAT_PATH = "/v1/chat/completions"
Says = Callable[[dict[str, Any]], Any]


def as_response(value: Any) -> Arrays:
    """What a model answers: JSON, or bytes as they are."""
    return {"response": np.array([value if isinstance(value, bytes) else json.dumps(value).encode()], dtype=object)}


class Guard:
    """A model that answers both hooks; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.before: Says = lambda question: {}
        self.after: Says = lambda question: {}
        self.hold: dict[str, Awaitable[Any]] = {}
        """By hook, what its answer waits for."""

    async def __call__(self, inputs: Mapping[str, Array]) -> Arrays:
        (text,) = inputs["request"].tolist()
        question = json.loads(text)
        self.asked.append(question)
        if question["hook"] in self.hold:
            await self.hold[question["hook"]]
        said = getattr(self, question["hook"])(question)
        if isinstance(said, Exception):
            raise said
        return as_response(said)

    def hooks(self) -> list[str]:
        return [question["hook"] for question in self.asked]


class Place:
    """The application with a guard for both hooks."""

    def __init__(self, **settings: Any) -> None:
        self.bench = Bench(**{"guard_before": "watch", "guard_after": "watch", **settings})
        self.guard = Guard()
        self.bench.model_calls.models["watch"] = self.guard
        self.app: Starlette = application(self.bench)

    @property
    def engine_request(self) -> GenerationRequest:
        (request,) = self.bench.engine.requests
        return request

    async def ask(self, path: str, body: Any, text: str | None = "hé", **more: Any) -> Answered:
        """A request; the engine answers `text` to each of its sequences, or is not reached."""
        before = len(self.bench.engine.requests)
        task = asyncio.ensure_future(ask(self.app, "POST", path, body, **more))
        await until(lambda: len(self.bench.engine.requests) > before or task.done())
        for at in range(before, len(self.bench.engine.requests)):
            assert text is not None
            if "embeddings" in path:
                self.bench.engine.deliver(at, [], "stop", embedding=[1.0, 0.0])
            else:
                self.bench.engine.deliver(at, text[:1])
                self.bench.engine.deliver(at, text[1:], "stop")
        answered = await asyncio.wait_for(task, WAIT_S)
        await until(lambda: self.bench.service.in_progress == 0)
        return answered

    def metrics(self) -> dict[tuple[str, str], float]:
        """Calls by hook and outcome."""
        return {
            (sample.labels["hook"], sample.labels["outcome"]): sample.value
            for family in self.bench.service.metrics.collect()
            for sample in family.samples
            if sample.name == "openai_bls_guard_call_seconds_count"
        }


@asynccontextmanager
async def place(**settings: Any) -> AsyncIterator[Place]:
    made = Place(**settings)
    yield made
    await until(lambda: made.bench.service.in_progress == 0)


def refusal(**fields: Any) -> Says:
    return lambda question: {"error": {"message": "not here", **fields}}
