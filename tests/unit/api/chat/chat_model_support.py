"""Chat models behind /v1/chat/completions, in process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from openai_bls.transport.model_calls import Array
from tests.unit.api.guard_support import as_response
from tests.unit.core_support import Answered, Bench, events
from tests.unit.pipeline.task_models.task_support import model

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "rag", "messages": [USER]}
STREAM = {**BODY, "stream": True}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CHOICE: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}
ANSWER: dict[str, Any] = {
    **{"id": "x", "object": "chat.completion", "created": 7, "model": "m"},
    "choices": [CHOICE],
    "usage": USAGE,
}


def chunk(content: str = "", finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {"content": content} if content else {}
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more}


def bench_of(
    whole: Any = None, chunks: Callable[[Mapping[str, Array]], Any] | None = None, *, name: str = "rag", **settings: Any
) -> Bench:
    """A service with a chat model, one that streams if `chunks` are given."""
    bench = Bench(**settings)
    decoupled = {"model_transaction_policy": {"decoupled": True}} if chunks is not None else {}
    bench.service.models.tasks.replace([model("chat", name, max_batch_size=0, **decoupled), model("embeddings", "vec")])
    bench.model_calls.models[name] = lambda _: as_response(whole)
    if chunks is not None:
        bench.model_calls.streams[name] = chunks
    return bench


def sent_to_model(bench: Bench) -> Any:
    ((_, inputs),) = bench.model_calls.called
    return json.loads(inputs["request"].item())


def streamed(answered: Answered) -> list[Any]:
    assert answered.status == 200
    assert answered.headers["content-type"].startswith("text/event-stream")
    *found, done = events(answered.body)
    assert done == "[DONE]"
    return [json.loads(each) for each in found]


def error_of(answered: Answered) -> tuple[int, str | None]:
    """Status and code."""
    return answered.status, answered.json()["error"]["code"]
