"""Serving of rerank and score: pairs of texts, by a model that scores them or by the cosine of their embeddings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from openai_bls.api.common.bodies import PromptUsage
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.one_shot import Tally, admitted
from openai_bls.api.common.pooled import Inputs, pooled
from openai_bls.api.tasks.rerank.schema import (
    DocumentObject,
    Pairs,
    RerankAnswer,
    RerankResult,
    Score,
    ScoreAnswer,
    parse_rerank,
    parse_score,
)
from openai_bls.core.errors import InvalidRequestError, ModelAnswerError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.calls import text_rows
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array


async def rerank(service: Service, context: RequestContext, body: dict[str, Any]) -> RerankAnswer:
    """The documents with their scores, the most relevant first; among equals the order of the request.

    Raises:
        ApiError: the request is bad, there is no model for it, or it failed.
    """
    request, documents = parse_rerank(body)
    model = await _model(service, context, request.model)
    with admitted(service, context, model.name) as tally:
        pairs = Pairs("query", [request.query] * len(documents), "documents", documents)
        scores = await _scores(service, context, model, pairs, tally)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    with_documents = request.return_documents is not False
    results = [
        RerankResult(index, scores[index], DocumentObject(documents[index]) if with_documents else None)
        for index in order
    ]
    return RerankAnswer(new_id("rerank-"), model.name, results, PromptUsage(tally.prompt_tokens, tally.prompt_tokens))


async def score(service: Service, context: RequestContext, body: dict[str, Any]) -> ScoreAnswer:
    """The scores of pairs of texts, in their order.

    Raises:
        ApiError: the request is bad, there is no model for it, or it failed.
    """
    request, pairs = parse_score(body)
    model = await _model(service, context, request.model)
    with admitted(service, context, model.name) as tally:
        scores = await _scores(service, context, model, pairs, tally)
    return ScoreAnswer(
        new_id("score-"),
        "list",
        int(time.time()),
        model.name,
        [Score(index, "score", value) for index, value in enumerate(scores)],
        PromptUsage(tally.prompt_tokens, tally.prompt_tokens),
    )


async def _model(service: Service, context: RequestContext, name: str | None) -> Target | TaskModel:
    """The model that scores; one of embeddings is taken only by its name."""
    if name is None:
        return await service.find_task(context, None, "rerank", "score")
    model = await service.find_task(context, name, "rerank", "score", "embeddings")
    if isinstance(model, TaskModel) and model.task == "embeddings" and "text" not in model.inputs:
        raise InvalidRequestError(f"The model {model.name!r} takes token ids, no text.", param="model")
    return model


async def _scores(
    service: Service, context: RequestContext, model: Target | TaskModel, pairs: Pairs, tally: Tally
) -> list[float]:
    if isinstance(model, Target):
        by_engine = _cosines_by_engine if model.model.info.task == "embeddings" else _scores_by_engine
        return await by_engine(service, context, model, pairs, tally)
    call = service.task_call(model, context.key, pairs.second_name)
    if model.task == "embeddings":
        texts = list(dict.fromkeys((*pairs.first, *pairs.second)))
        vectors = dict(zip(texts, (await call.run({"text": text_rows(texts)}))["embedding"], strict=True))
        scores = [_cosine(vectors[a], vectors[b]) for a, b in zip(pairs.first, pairs.second, strict=True)]
    else:
        outputs = await call.run({"query": text_rows(pairs.first), "document": text_rows(pairs.second)})
        scores = [float(row[0]) for row in outputs["score"]]
    tally.prompt_tokens = call.prompt_tokens
    return scores


async def _scores_by_engine(
    service: Service, context: RequestContext, target: Target, pairs: Pairs, tally: Tally
) -> list[float]:
    def read(scores: list[float]) -> float:
        if len(scores) != 1:
            raise ModelAnswerError(target.name, f"answered with {len(scores)} scores for a pair")
        return scores[0]

    inputs = Inputs(pairs.second_name, "classify", pairs=list(zip(pairs.first, pairs.second, strict=True)))
    return await pooled(service, context, target, inputs, tally, read)


async def _cosines_by_engine(
    service: Service, context: RequestContext, target: Target, pairs: Pairs, tally: Tally
) -> list[float]:
    async def vectors(name: str, texts: Sequence[str]) -> list[Array]:
        # One text against many is one input.
        once = texts[:1] if len(set(texts)) == 1 else texts
        found = await pooled(service, context, target, Inputs(name, "embed", texts=once), tally, np.asarray)
        return found * (len(texts) // len(once))

    first = await vectors(pairs.first_name, pairs.first)
    second = await vectors(pairs.second_name, pairs.second)
    return [_cosine(a, b) for a, b in zip(first, second, strict=True)]


def _cosine(a: Array, b: Array) -> float:
    lengths = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.dot(a, b)) / lengths if lengths > 0 else 0.0
