"""Classes of inputs and their scores, by an engine's model or by another Triton model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openai_bls.api.common.one_shot import Tally
from openai_bls.api.common.pooled import Inputs, pooled
from openai_bls.core.errors import ModelAnswerError
from openai_bls.pipeline.lifecycle.context import RequestContext
from openai_bls.pipeline.models.registry import Target
from openai_bls.pipeline.service import Service
from openai_bls.pipeline.task_models.calls import text_rows
from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.transport.model_calls import Array


class Classes(NamedTuple):
    """Scores of one input, at least one, and the names of their classes; none where the model does not name them."""

    names: Sequence[str]
    scores: list[float]


async def classes_by_engine(
    service: Service, context: RequestContext, target: Target, inputs: Inputs, tally: Tally
) -> list[Classes]:
    """The classes of each input, in their order, by an engine; see `pooled`.

    Raises:
        ApiError: an input is bad, or the engine failed.
    """
    names = target.model.info.labels
    return await pooled(service, context, target, inputs, tally, lambda row: _checked(target.name, names, row))


async def classes_by_task(
    service: Service, context: RequestContext, model: TaskModel, texts: Sequence[str], tally: Tally
) -> list[Classes]:
    """The classes of each text, in their order, by another Triton model.

    Raises:
        ApiError: the model failed.
    """
    call = service.task_call(model, context.key, "input")
    outputs = await call.run({"text": text_rows(texts)})
    tally.prompt_tokens = call.prompt_tokens
    rows = outputs["scores"]
    names = outputs.get("labels", [None] * len(rows))
    return [_checked(model.name, _labels(model, labels), row.tolist()) for row, labels in zip(rows, names, strict=True)]


def _labels(model: TaskModel, labels: Array | None) -> Sequence[str]:
    return model.labels if labels is None else [bytes(label).decode(errors="replace") for label in labels]


def _checked(model: str, names: Sequence[str], scores: list[float]) -> Classes:
    if not scores or (names and not len(set(names)) == len(names) == len(scores)):
        raise ModelAnswerError(model, f"answered with {len(scores)} scores for {len(set(names))} classes")
    return Classes(names, scores)
