from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from openai_bls.api.common.bodies import MAX_INPUTS
from openai_bls.transport.model_calls import Array, Arrays
from tests.unit.api.http_support import asked, refused
from tests.unit.core_support import Bench
from tests.unit.pipeline.task_models.task_support import model, tensor

RERANK, SCORE = "/v1/rerank", "/v1/score"
DOCUMENTS = ["pear", "Paris", "a pair"]


def closeness(inputs: Mapping[str, Array]) -> Arrays:
    """The number of letters of the query that the document has, and of its tokens, which are letters."""
    pairs = zip(inputs["query"][:, 0], inputs["document"][:, 0], strict=True)
    scores = [[len(set(query) & set(document))] for query, document in pairs]
    tokens = [[len(document)] for document in inputs["document"][:, 0]]
    return {"score": np.array(scores, np.float32), "prompt_tokens": np.array(tokens, np.int64)}


def directions(inputs: Mapping[str, Array]) -> Arrays:
    """An embedding of each text: how many p and how many r it has."""
    texts = inputs["text"][:, 0]
    return {"embedding": np.array([[text.count(b"p"), text.count(b"r"), 0, 0] for text in texts], np.float32)}


def make_bench() -> Bench:
    bench = Bench()
    outputs = [tensor("score", "TYPE_FP32"), tensor("prompt_tokens", "TYPE_INT64")]
    bench.service.models.tasks.replace([model("rerank", "ranks", output=outputs), model("embeddings", "vectors")])
    bench.model_calls.models |= {"ranks": closeness, "vectors": directions}
    return bench


def ranked(bench: Bench, **body: Any) -> Any:
    answered = asked(bench, RERANK, body)
    assert answered.status == 200
    return answered.json()


def scored(bench: Bench, **body: Any) -> Any:
    answered = asked(bench, SCORE, body)
    assert answered.status == 200
    return answered.json()


def test_documents_in_order_of_relevance() -> None:
    bench = make_bench()
    answer = ranked(bench, query="pair", documents=["pear", {"text": "Paris"}, "a pair"], user="u")
    assert answer.pop("id").startswith("rerank-")
    assert answer == {
        "model": "ranks",
        "results": [
            {"index": 2, "relevance_score": 4.0, "document": {"text": "a pair"}},
            # Equals in the order of the request.
            {"index": 0, "relevance_score": 3.0, "document": {"text": "pear"}},
            {"index": 1, "relevance_score": 3.0, "document": {"text": "Paris"}},
        ],
        "usage": {"prompt_tokens": 15, "total_tokens": 15},
    }
    (record,) = bench.records
    assert (record.endpoint, record.model, record.usage.prompt_tokens) == ("rerank", "ranks", 15)


def test_the_best_without_their_texts() -> None:
    answer = ranked(make_bench(), model="ranks", query="pair", documents=DOCUMENTS, top_n=1, return_documents=False)
    assert answer["results"] == [{"index": 2, "relevance_score": 4.0}]
    assert len(ranked(make_bench(), query="pair", documents=DOCUMENTS, top_n=9)["results"]) == 3


@pytest.mark.parametrize(
    ("body", "scores"),
    [
        ({"text_1": "pair", "text_2": "pear"}, [3.0]),
        ({"text_1": "pair", "text_2": ["pear", "a pair"]}, [3.0, 4.0]),
        ({"text_1": ["pair", "x"], "text_2": ["pear", "xx"]}, [3.0, 1.0]),
        ({"queries": ["pair"], "documents": ["pear", "a pair"]}, [3.0, 4.0]),
        ({"text_1": "pair", "documents": [{"text": "pear"}, "a pair"]}, [3.0, 4.0]),
    ],
)
def test_pairs(body: dict[str, Any], scores: list[float]) -> None:
    answer = scored(make_bench(), **body)
    assert [item["score"] for item in answer["data"]] == scores
    assert [(item["index"], item["object"]) for item in answer["data"]] == [(n, "score") for n in range(len(scores))]
    assert (answer["object"], answer["model"]) == ("list", "ranks")


def test_an_embedding_model_by_the_cosine() -> None:
    bench = make_bench()
    answer = scored(bench, model="vectors", text_1="p", text_2=["pp", "r", "pr", "x", "p"])
    assert [item["score"] for item in answer["data"]] == pytest.approx([1.0, 0.0, 0.5**0.5, 0.0, 1.0])
    # Each text once.
    ((_, inputs),) = bench.model_calls.called
    assert inputs["text"].tolist() == [[b"p"], [b"pp"], [b"r"], [b"pr"], [b"x"]]
    assert answer["usage"]["prompt_tokens"] == 0
    assert ranked(bench, model="vectors", query="p", documents=["r", "p"])["results"][0]["index"] == 1


PLAIN: dict[str, Any] = {"query": "x", "documents": ["x"]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (RERANK, {"documents": ["x"]}, "query"),
        (RERANK, {**PLAIN, "documents": []}, "documents"),
        (RERANK, {**PLAIN, "documents": ["x"] * (MAX_INPUTS + 1)}, "documents"),
        (RERANK, {**PLAIN, "documents": [{}]}, "documents[0].text"),
        (RERANK, {**PLAIN, "documents": [{"text": "x", "title": "y"}]}, "documents[0].title"),
        (RERANK, {**PLAIN, "top_n": 0}, "top_n"),
        (RERANK, {**PLAIN, "rank_fields": ["a"]}, "rank_fields"),
        (RERANK, {**PLAIN, "model": "tiny"}, "model"),
        (SCORE, {"text_1": "x"}, "text_2"),
        (SCORE, {"text_1": "x", "queries": "y", "text_2": "z"}, "queries"),
        (SCORE, {"text_1": ["x", "y"], "text_2": ["a", "b", "c"]}, "text_2"),
        (SCORE, {"queries": [], "documents": "x"}, "queries"),
        (SCORE, {"queries": "x", "documents": [{"text": 1}]}, "documents[0].text"),
        (SCORE, {"text_1": "x", "text_2": [{"text": "y"}]}, "text_2[0]"),
        (SCORE, {"text_1": "x", "text_2": "y", "model": "nope"}, "model"),
    ],
)
def test_refusals(path: str, body: dict[str, Any], param: str) -> None:
    assert refused(make_bench(), path, body)[1] == param


def test_an_embedding_model_without_text() -> None:
    bench = make_bench()
    ids = [tensor("token_ids", "TYPE_INT32", [-1])]
    bench.service.models.tasks.replace([model("embeddings", "vectors", input=ids)])
    assert refused(bench, SCORE, {"model": "vectors", "text_1": "x", "text_2": "y"})[:2] == (400, "model")
    # Nor is it taken unasked.
    assert refused(bench, SCORE, {"text_1": "x", "text_2": "y"})[0] == 404
