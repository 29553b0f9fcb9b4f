"""Embeddings of another Triton model."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import Bench, engine_info
from tests.unit.pipeline.task_models.task_support import model, tensor

PATH = "/v1/embeddings"
IDS = tensor("token_ids", "TYPE_INT64", [-1], optional=True)
VECTOR = [0.0, 3.0, 4.0, 12.0]


def bench_of(*, counts: bool = False, name: str = "vectors", no_engine: bool = False, **changes: Any) -> Bench:
    """A service with an embedding model that answers VECTOR to everything."""
    bench = Bench(engine_info(supported=frozenset()) if no_engine else None)
    outputs = [tensor("embedding", "TYPE_FP32", [4])] + [tensor("prompt_tokens", "TYPE_INT32")] * counts
    bench.service.models.tasks.replace([model("embeddings", name, output=outputs, **changes)])
    bench.model_calls.models[name] = lambda inputs: {
        "embedding": np.tile(np.array(VECTOR, np.float32), (len(next(iter(inputs.values()))), 1)),
        "prompt_tokens": np.full((len(next(iter(inputs.values()))), 1), 7, np.int32),
    }
    return bench


def answer_of(bench: Bench, **body: Any) -> Any:
    answered = asked(bench, PATH, {"model": "vectors", "input": "a", **body})
    assert answered.status == 200
    return answered.json()


def test_texts() -> None:
    bench = bench_of(counts=True)
    assert answer_of(bench, input=["a", "bc"], user="u") == {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": VECTOR} for index in (0, 1)],
        "model": "vectors",
        "usage": {"prompt_tokens": 14, "total_tokens": 14},
    }
    (record,) = bench.records
    assert (record.endpoint, record.model, record.outcome) == ("embeddings", "vectors", "done")
    assert record.usage.prompt_tokens == 14
    assert bench.busy == [1, 0]


def test_token_ids_are_counted_and_texts_are_not_guessed() -> None:
    bench = bench_of(input=[tensor("text", optional=True), IDS])
    assert answer_of(bench, input=[[1, 2, 3], [4]])["usage"]["prompt_tokens"] == 4
    assert answer_of(bench, input="abc")["usage"]["prompt_tokens"] == 0


def test_base64() -> None:
    raw = base64.b64decode(answer_of(bench_of(), encoding_format="base64")["data"][0]["embedding"], validate=True)
    assert np.frombuffer(raw, "<f4").tolist() == VECTOR


@pytest.mark.parametrize(
    ("changes", "dimensions", "vector"),
    [
        ({"openai_dimensions": "matryoshka"}, 3, [0.0, 0.6, 0.8]),
        ({"openai_dimensions": "matryoshka"}, 1, [0.0]),
        ({}, 4, VECTOR),
        ({"openai_dimensions": "matryoshka"}, 5, None),
        ({}, 3, None),
    ],
)
def test_dimensions(changes: dict[str, Any], dimensions: int, vector: list[float] | None) -> None:
    bench = bench_of(**changes)
    if vector is not None:
        assert answer_of(bench, dimensions=dimensions)["data"][0]["embedding"] == pytest.approx(vector)
        return
    error = asked(bench, PATH, {"model": "vectors", "input": "a", "dimensions": dimensions}).json()["error"]
    assert (error["param"], error["code"]) == ("dimensions", "unsupported_parameter")


@pytest.mark.parametrize(
    ("body", "changes", "param"),
    [
        ({"pooling": "mean"}, {}, "pooling"),
        ({"add_special_tokens": False}, {}, "add_special_tokens"),
        ({"input": [1, 2]}, {}, "input"),
        ({"input": "a"}, {"input": [IDS]}, "input"),
        ({"input": ["a", ""]}, {}, "input"),
        ({"input": [[1], []]}, {"input": [IDS]}, "input"),
    ],
)
def test_refusals(body: dict[str, Any], changes: dict[str, Any], param: str) -> None:
    bench = bench_of(**changes)
    assert refused(bench, PATH, {"model": "vectors", "input": "a", **body})[:2] == (400, param)
    assert bench.model_calls.called == []


def test_the_engine_is_the_default_where_it_has_embeddings_and_keeps_its_name() -> None:
    bench = bench_of(no_engine=True)
    assert answer_of(bench, model=None)["model"] == "vectors"
    # Named, it is meant.
    none_there = (400, "model", "unsupported_endpoint")
    assert refused(bench, PATH, {"model": "tiny", "input": "a"}) == none_there
    bench.service.models.tasks.replace([])
    assert refused(bench, PATH, {"input": "a"}) == none_there
    assert refused(bench, PATH, {"model": "nope", "input": "a"}) == (404, "model", "model_not_found")
    same = bench_of(name="openai_bls", no_engine=True)
    assert refused(same, PATH, {"model": "openai_bls", "input": "a"}) == none_there


def test_models_of_another_task_and_with_a_fault() -> None:
    bench = bench_of()
    bench.service.models.tasks.replace([model("rerank", "ranks"), model("embeddings", "broken", output=[])])
    assert refused(bench, PATH, {"model": "ranks", "input": "a"}) == (400, "model", "unsupported_endpoint")
    assert refused(bench, PATH, {"model": "broken", "input": "a"})[0] == 503


@pytest.mark.parametrize(
    "outputs",
    [{"embedding": np.ones((2, 7), np.float32)}, {"prompt_tokens": np.array([[3], [-1]], np.int32)}],
)
def test_an_answer_that_is_not_what_the_model_declares_is_its_fault(outputs: dict[str, Any]) -> None:
    bench = bench_of(counts=True)
    good = {"embedding": np.ones((2, 4), np.float32), "prompt_tokens": np.full((2, 1), 7, np.int32)}
    bench.model_calls.models["vectors"] = lambda _: {**good, **outputs}
    answered = asked(bench, PATH, {"model": "vectors", "input": ["a", "b"]})
    assert (answered.status, answered.json()["error"]["code"]) == (502, "bad_model_answer")
    assert f"'{next(iter(outputs))}'" in answered.json()["error"]["message"]
