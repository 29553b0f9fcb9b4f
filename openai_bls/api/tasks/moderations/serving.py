"""Serving of moderations: each class that a model has, its score, and whether it reaches the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.one_shot import admitted
from openai_bls.api.common.pooled import Inputs, pooled
from openai_bls.api.tasks.moderations.schema import Moderation, ModerationsAnswer, parse_moderations
from openai_bls.core.errors import ModelAnswerError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.calls import text_rows
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array

_THRESHOLD = 0.5
"""Score from which on a class of an engine's model is flagged."""


async def moderate(service: Service, context: RequestContext, body: dict[str, Any]) -> ModerationsAnswer:
    """The classes of each text, in their order.

    Raises:
        ApiError: the request is bad, there is no model for it, or it failed.
    """
    request, texts = parse_moderations(body)
    model = await service.find_task(context, request.model, "classify")
    if isinstance(model, Target):
        return await _by_engine(service, context, model, texts)
    with admitted(service, context, model.name) as tally:
        call = service.task_call(model)
        outputs = await call.run({"text": text_rows(texts)})
        tally.prompt_tokens = call.prompt_tokens
        rows = outputs["scores"]
        names = outputs.get("labels", [None] * len(rows))
        results = [
            _moderation(model.name, row.tolist(), _labels(model, labels), model.threshold)
            for row, labels in zip(rows, names, strict=True)
        ]
    return ModerationsAnswer(new_id("modr-"), model.name, results)


async def _by_engine(service: Service, context: RequestContext, target: Target, texts: list[str]) -> ModerationsAnswer:
    def read(scores: list[float]) -> Moderation:
        return _moderation(target.name, scores, target.model.info.labels, _THRESHOLD)

    with admitted(service, context, target.name) as tally:
        results = await pooled(service, context, target, Inputs("input", "classify", texts=texts), tally, read)
    return ModerationsAnswer(new_id("modr-"), target.name, results)


def _labels(model: TaskModel, labels: Array | None) -> Sequence[str]:
    return model.labels if labels is None else [bytes(label).decode(errors="replace") for label in labels]


def _moderation(model: str, row: Sequence[float], names: Sequence[str], threshold: float) -> Moderation:
    scores = dict(zip(names, row, strict=False))
    if not len(scores) == len(names) == len(row):
        raise ModelAnswerError(model, f"answered with {len(row)} scores for {len(set(names))} classes")
    categories = {name: value >= threshold for name, value in scores.items()}
    return Moderation(any(categories.values()), categories, scores, {name: ["text"] for name in scores})
