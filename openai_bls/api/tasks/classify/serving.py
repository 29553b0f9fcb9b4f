"""Serving of classify: each class that a model has and its probability, or a reward."""

from __future__ import annotations

import time
from typing import Any

from openai_bls.api.common.bodies import PromptUsage
from openai_bls.api.common.classes import Classes, classes_by_engine, classes_by_task
from openai_bls.api.common.encoding import new_id
from openai_bls.api.common.large_bodies import is_large, parsed
from openai_bls.api.common.one_shot import admitted
from openai_bls.api.common.pooled import Inputs
from openai_bls.api.common.unsupported import Unsupported, refuse_unsupported
from openai_bls.api.tasks.classify.schema import ClassificationAnswer, ClassificationData, Parsed, parse_classify
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.preparation.checks import check
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.registry import TaskModel

_OF_ENGINES = {
    "messages": Unsupported((), "the model has no chat template"),
    "use_activation": Unsupported((), "the model gives its scores as it was made to"),
    "add_special_tokens": Unsupported((), "the model tokenizes as it was made to"),
    "priority": Unsupported((0,), "the model's requests wait in Triton, in the order in which they come"),
}


async def classify(service: Service, context: RequestContext, body: dict[str, Any]) -> ClassificationAnswer:
    """The classes of each input, in their order.

    Raises:
        ApiError: the request is bad, there is no model for it, or it failed.
    """
    max_items = service.models.longest_context
    request = await parsed(lambda: parse_classify(body, max_items), large=is_large(body), key=context.key)
    model = await service.find_task(context, request.body.model, "classify", "reward")
    if isinstance(model, Target):
        inputs = _inputs(service, model, request)
        with admitted(service, context, model.name) as tally:
            found = await classes_by_engine(service, context, model, inputs, tally)
    else:
        _check_for_task(model, request)
        with admitted(service, context, model.name) as tally:
            found = await classes_by_task(service, context, model, request.texts, tally)
    data = [_data(index, classes) for index, classes in enumerate(found)]
    usage = PromptUsage(tally.prompt_tokens, tally.prompt_tokens)
    return ClassificationAnswer(new_id("classify-"), "list", int(time.time()), model.name, data, usage)


def _inputs(service: Service, target: Target, request: Parsed) -> Inputs:
    chat = request.chat
    if chat is not None:
        check(chat, target.model, service.settings)
    return Inputs(
        "input" if chat is None else "messages",
        "classify",
        request.token_ids,
        request.texts,
        chat=None if chat is None else chat.prompt,
        add_special_tokens=request.body.add_special_tokens is not False,
        use_activation=request.body.use_activation,
        priority=request.body.priority or 0,
    )


def _check_for_task(model: TaskModel, request: Parsed) -> None:
    fields = {name: getattr(request.body, name) for name in _OF_ENGINES}
    refuse_unsupported(fields, _OF_ENGINES)
    if request.token_ids:
        raise InvalidRequestError(f"The model {model.name!r} takes text, no token ids.", param="input")


def _data(index: int, classes: Classes) -> ClassificationData:
    scores = classes.scores
    likeliest = max(range(len(scores)), key=scores.__getitem__)
    label = classes.names[likeliest] if classes.names else None
    return ClassificationData(index, label, scores, len(scores))
