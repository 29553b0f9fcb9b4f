"""Serving of moderations: each class that a model has, its score, and whether it reaches the threshold."""

from __future__ import annotations

from typing import Any

from openai_bls.api.common.classes import Classes, classes_by_engine, classes_by_task
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.one_shot import admitted
from openai_bls.api.common.pooled import Inputs
from openai_bls.api.tasks.moderations.schema import Moderation, ModerationsAnswer, parse_moderations
from openai_bls.core.errors import ModelAnswerError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service

_THRESHOLD = 0.5
"""Score from which on a class of an engine's model is flagged."""


async def moderate(service: Service, context: RequestContext, body: dict[str, Any]) -> ModerationsAnswer:
    """The classes of each text, in their order.

    Raises:
        ApiError: the request is bad, there is no model for it, or it failed.
    """
    request, texts = parse_moderations(body)
    model = await service.find_task(context, request.model, "classify")
    with admitted(service, context, model.name) as tally:
        if isinstance(model, Target):
            inputs, threshold = Inputs("input", "classify", texts=texts), _THRESHOLD
            found = await classes_by_engine(service, context, model, inputs, tally)
        else:
            threshold = model.threshold
            found = await classes_by_task(service, context, model, texts, tally)
        results = [_moderation(model.name, classes, threshold) for classes in found]
    return ModerationsAnswer(new_id("modr-"), model.name, results)


def _moderation(model: str, classes: Classes, threshold: float) -> Moderation:
    if not classes.names:
        raise ModelAnswerError(model, f"answered with {len(classes.scores)} scores for classes without names")
    scores = dict(zip(classes.names, classes.scores, strict=True))
    categories = {name: value >= threshold for name, value in scores.items()}
    return Moderation(any(categories.values()), categories, scores, {name: ["text"] for name in scores})
