"""Embeddings, scores and classes by an engine whose model does nothing else."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, PromptResult, TokenDelta
from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import Bench, engine_info, token_ids
from tests.unit.pipeline.task_models.task_support import model

FIELDS = ("pooling", "dimensions", "compressed_token_type_ids")
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def bench_of(task: str, **changes: Any) -> Bench:
    return Bench(engine_info(**{"task": task, "supported": FIELDS, "embedding_size": 4, **changes}))


def answers_by(bench: Bench, numbers: Callable[[GenerationRequest], list[float]]) -> None:
    """Let the engine answer each prompt with numbers, in the turn after it was asked."""
    submit = bench.engine.submit

    def answer(request: GenerationRequest, listener: Callable[[TokenDelta], None]) -> None:
        submit(request, listener)
        delta = TokenDelta(request.request_id, [], "stop", embedding=numbers(request))
        asyncio.get_running_loop().call_soon(listener, delta)

    bench.engine.submit = answer  # type: ignore[method-assign]


def answered(bench: Bench, path: str, body: dict[str, Any], numbers: Callable[[GenerationRequest], list[float]]) -> Any:
    """The answer, for which the engine makes numbers of each prompt."""
    answers_by(bench, numbers)
    found = asked(bench, path, body)
    assert found.status == 200, found.body
    return found.json()


def length(request: GenerationRequest) -> list[float]:
    return [float(len(request.prompt_token_ids))]


def test_embeddings_are_the_models_own() -> None:
    bench = bench_of("embeddings", matryoshka_dimensions=(2,))
    body = {"input": ["hé", "x"], "dimensions": 2, "encoding_format": "base64"}
    answer = answered(bench, "/v1/embeddings", body, lambda request: [*length(request), 0.5])
    raw = [struct.unpack("<2f", base64.b64decode(one["embedding"])) for one in answer["data"]]
    assert raw == [(3.0, 0.5), (1.0, 0.5)]
    assert {(one.pooling, one.dimensions) for one in bench.engine.requests} == {("embed", 2)}
    assert answer["usage"]["prompt_tokens"] == 4


def test_token_ids_and_the_models_own_size() -> None:
    bench = bench_of("embeddings")
    ids = token_ids("hi")
    answer = answered(bench, "/v1/embeddings", {"input": ids, "dimensions": 4}, lambda _: [0.5] * 4)
    assert answer["data"][0]["embedding"] == [0.5] * 4
    (request,) = bench.engine.requests
    assert (request.prompt_token_ids, request.dimensions) == (ids, None)


@settings(deadline=None, max_examples=25)
@given(dimensions=st.integers(1, 6), sizes=st.none() | st.sets(st.integers(1, 4)))
def test_a_size_that_the_model_has_not_is_refused(dimensions: int, sizes: set[int] | None) -> None:
    supported = FIELDS if sizes is not None else ("pooling",)
    bench = bench_of("embeddings", supported=supported, matryoshka_dimensions=tuple(sizes or ()))
    allowed = {4} | (sizes or set(range(1, 5)) if sizes is not None else set())
    body = {"input": "x", "dimensions": dimensions}
    if dimensions in allowed:
        answered(bench, "/v1/embeddings", body, lambda _: [0.5] * dimensions)
    else:
        assert refused(bench, "/v1/embeddings", body) == (400, "dimensions", "unsupported_parameter")


def test_rerank_scores_pairs_with_their_token_types() -> None:
    bench = bench_of("score")
    body = {"query": "pq", "documents": ["x", {"text": "xyz"}, "xy"], "top_n": 2}
    answer = answered(bench, "/v1/rerank", body, length)
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [(1, 5.0), (2, 4.0)]
    assert answer["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    assert answer["model"] == "tiny"
    first = min(bench.engine.requests, key=lambda one: len(one.prompt_token_ids))
    assert (first.pooling, first.prompt_token_ids, first.compressed_token_type_ids) == ("classify", token_ids("pqx"), 2)
    (record,) = bench.records
    assert (record.endpoint, record.outcome, record.usage.prompt_tokens) == ("rerank", "done", 12)


def test_scores_in_the_order_of_the_pairs() -> None:
    answer = answered(bench_of("score"), "/v1/score", {"text_1": ["a", "ab"], "text_2": ["xyz", "x"]}, length)
    assert [one["score"] for one in answer["data"]] == [4.0, 3.0]


def test_cosines_of_a_model_that_embeds_and_is_named() -> None:
    bench = bench_of("embeddings")
    vectors = {1: [1.0, 0.0], 2: [1.0, 1.0], 3: [0.0, 2.0]}
    body = {"model": "tiny", "text_1": "q", "text_2": ["xx", "xyz"]}

    def numbers(request: GenerationRequest) -> list[float]:
        return vectors[len(request.prompt_token_ids)]

    found = answered(bench, "/v1/score", body, numbers)
    assert [one["score"] for one in found["data"]] == pytest.approx([math.sqrt(0.5), 0.0])
    # The one text against many is pooled once.
    assert len(bench.engine.requests) == 3
    assert refused(bench_of("embeddings"), "/v1/score", {"text_1": "q", "text_2": "x"})[:2] == (404, "model")


def test_moderations_have_the_models_classes() -> None:
    bench = bench_of("classify", labels=("fine", "toxic"))
    answer = answered(bench, "/v1/moderations", {"input": ["ab", "x"]}, lambda one: [0.4, length(one)[0] / 3])
    first, second = answer["results"]
    assert first["category_scores"] == pytest.approx({"fine": 0.4, "toxic": 2 / 3})
    assert (first["flagged"], first["categories"]) == (True, {"fine": False, "toxic": True})
    assert second["flagged"] is False


@pytest.mark.parametrize(
    ("task", "path", "body"),
    [
        ("classify", "/v1/moderations", {"input": "x"}),
        ("score", "/v1/rerank", {"query": "q", "documents": ["x"]}),
    ],
)
def test_another_number_of_scores_is_the_models_fault(task: str, path: str, body: dict[str, Any]) -> None:
    bench = bench_of(task, labels=("a", "b", "c"))
    found = asked(bench, path, body, lambda: bench.engine.deliver(0, [], "stop", embedding=[0.1, 0.2]))
    assert (found.status, found.json()["error"]["code"]) == (502, "bad_model_answer")


@pytest.mark.parametrize("task", ["embeddings", "score", "classify", "reward"])
@pytest.mark.parametrize("name", [{}, {"model": "tiny"}])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {**CHAT, "max_tokens": 3}),
    ],
)
def test_such_a_model_generates_nothing(task: str, name: dict[str, str], path: str, body: dict[str, Any]) -> None:
    bench = bench_of(task)
    found = asked(bench, path, {"model": "tiny", **body} if "messages" in path else {**body, **name})
    error = found.json()["error"]
    assert (found.status, error.get("param", "model")) == (400, "model")
    assert bench.engine.requests == []


@pytest.mark.parametrize(
    ("path", "body", "task"),
    [
        ("/v1/embeddings", {"input": "x"}, "score"),
        ("/v1/rerank", {"query": "q", "documents": ["x"]}, "classify"),
        ("/v1/score", {"text_1": "q", "text_2": "x"}, "classify"),
        ("/v1/moderations", {"input": "x"}, "embeddings"),
        ("/v1/moderations", {"input": "x"}, "reward"),
        ("/v1/classify", {"input": "x"}, "score"),
    ],
)
def test_a_model_of_another_task_is_refused(path: str, body: dict[str, Any], task: str) -> None:
    assert refused(bench_of(task), path, {"model": "tiny", **body}) == (400, "model", "unsupported_endpoint")


def test_of_several_models_one_must_be_named() -> None:
    bench = bench_of("score")
    bench.service.models.tasks.replace([model("rerank", "ranks")])
    assert refused(bench, "/v1/rerank", {"query": "q", "documents": ["x"]}) == (
        400,
        "model",
        "missing_required_parameter",
    )
    answered(bench, "/v1/rerank", {"model": "tiny", "query": "q", "documents": ["x"]}, length)


def test_pairs_that_are_too_long_are_named() -> None:
    bench = bench_of("score", max_model_len=4)
    assert refused(bench, "/v1/rerank", {"query": "pq", "documents": ["x", "xyz"]}) == (
        400,
        "documents[1]",
        "context_length_exceeded",
    )


def test_a_preprocessing_without_pairs_is_said() -> None:
    bench = bench_of("score")
    bench.prompts.result = PromptResult([])
    assert refused(bench, "/v1/rerank", {"query": "pq", "documents": ["x", "xyz"]})[0] == 501


def test_the_models_task_is_listed() -> None:
    cards = asked(bench_of("embeddings"), "/v1/models", method="GET").json()["data"]
    assert {card["task"] for card in cards} == {"embeddings"}


def test_the_way_of_pooling_is_the_models() -> None:
    body = {"input": "x", "pooling": "mean"}
    assert refused(bench_of("embeddings"), "/v1/embeddings", body) == (400, "pooling", "unsupported_parameter")


def test_the_description_names_it_for_its_task() -> None:
    document = asked(bench_of("score"), "/openapi.json", method="GET").json()
    bodies = {
        path: document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for path in ("/v1/rerank", "/v1/score", "/v1/embeddings", "/v1/chat/completions")
    }
    named = {path for path, body in bodies.items() if body.get("example", {}).get("model") == "tiny"}
    assert named == {"/v1/rerank", "/v1/score"}
