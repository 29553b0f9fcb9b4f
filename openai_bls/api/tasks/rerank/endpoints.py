"""/rerank and /score: under /v1, and where vLLM and Cohere have them."""

from __future__ import annotations

from typing import Any

from openai_bls.api.endpoint import Smoke, expect, one_shot
from openai_bls.api.tasks.rerank.schema import RerankBody, ScoreBody
from openai_bls.api.tasks.rerank.serving import rerank, score
from openai_bls.core.errors import ModelAnswerError

_QUERY = "What is the capital of France?"
_DOCUMENTS = ["Paris is the capital of France.", "A pear is a fruit."]


def _check_rerank(answer: Any) -> str:
    scores = [result["relevance_score"] for result in answer["results"]]
    expect(len(scores) == 2 and scores == sorted(scores, reverse=True), f"scores {scores}")
    return f"{scores[0]:.3f} for {answer['results'][0]['document']['text']!r}"


def _check_score(answer: Any) -> str:
    scores = [item["score"] for item in answer["data"]]
    expect(len(scores) == 2, f"{len(scores)} scores for 2 pairs")
    return ", ".join(f"{value:.3f}" for value in scores)


ENDPOINTS = (
    one_shot(
        "rerank",
        rerank,
        body=RerankBody,
        summary="Documents in the order in which they answer a query",
        paths=("/v1/rerank", "/rerank", "/v2/rerank"),
        smoke=Smoke(body={"query": _QUERY, "documents": _DOCUMENTS}, check=_check_rerank, tasks=("rerank", "score")),
        errors=frozenset({ModelAnswerError}),
    ),
    one_shot(
        "score",
        score,
        body=ScoreBody,
        summary="Scores of pairs of texts",
        paths=("/v1/score", "/score"),
        smoke=Smoke(body={"text_1": _QUERY, "text_2": _DOCUMENTS}, check=_check_score, tasks=("rerank", "score")),
        errors=frozenset({ModelAnswerError}),
    ),
)
