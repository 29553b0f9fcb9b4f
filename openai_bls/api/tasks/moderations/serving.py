"""Serving of moderations: each class that a model has, its score, and whether it reaches the threshold."""

from __future__ import annotations

from typing import Any

from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.one_shot import admitted
from openai_bls.api.tasks.moderations.schema import Moderation, ModerationsAnswer, parse_moderations
from openai_bls.core.errors import ModelAnswerError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.calls import text_rows
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array


async def moderate(service: Service, context: RequestContext, body: dict[str, Any]) -> ModerationsAnswer:
    """The classes of each text, in their order.

    Raises:
        ApiError: the request is bad, there is no model for it, or it failed.
    """
    request, texts = parse_moderations(body)
    model = await service.find_task(context, request.model, "classify")
    with admitted(service, context, model.name) as tally:
        call = service.task_call(model)
        outputs = await call.run({"text": text_rows(texts)})
        tally.prompt_tokens = call.prompt_tokens
        rows = outputs["scores"]
        names = outputs.get("labels", [None] * len(rows))
        results = [_moderation(model, row, labels) for row, labels in zip(rows, names, strict=True)]
    return ModerationsAnswer(new_id("modr-"), model.name, results)


def _moderation(model: TaskModel, row: Array, labels: Array | None) -> Moderation:
    names = model.labels if labels is None else [bytes(label).decode(errors="replace") for label in labels]
    scores = dict(zip(names, row.tolist(), strict=False))
    if not len(scores) == len(names) == len(row):
        raise ModelAnswerError(model.name, f"answered with {len(row)} scores for {len(set(names))} classes")
    categories = {name: value >= model.threshold for name, value in scores.items()}
    return Moderation(any(categories.values()), categories, scores, {name: ["text"] for name in scores})
