from __future__ import annotations

import pytest

from openai_bls.core.errors import ApiError
from openai_bls.pipeline.task_models.registry import Task, TaskModels
from tests.unit.task_support import model

pytestmark = pytest.mark.anyio

BROKEN = model("embeddings", "broken", output=[])
RERANK: tuple[Task, ...] = ("rerank", "score")


async def refusal(
    models: TaskModels, name: str | None, *tasks: Task, served: tuple[str, ...] = ()
) -> tuple[int, str | None, str]:
    with pytest.raises(ApiError) as info:
        await models.find(name, tasks, served)
    return info.value.status, info.value.code, info.value.message


async def test_by_name() -> None:
    models = TaskModels()
    models.replace([model("embeddings", "vectors"), model("rerank", "ranks"), BROKEN])
    assert (await models.find("vectors", ["embeddings"])).name == "vectors"
    assert (await models.find("ranks", RERANK)).name == "ranks"
    assert await refusal(models, "nope", "embeddings") == (
        404,
        "model_not_found",
        "The model 'nope' does not exist; models for this endpoint: vectors, broken.",
    )
    assert await refusal(models, "vectors", *RERANK) == (
        400,
        "unsupported_endpoint",
        "The model 'vectors' makes embeddings: use /v1/embeddings, /v1/rerank or /v1/score.",
    )
    status, code, message = await refusal(models, "broken", "embeddings")
    assert (status, code) == (503, "model_unavailable")
    assert message.startswith("The model 'broken' cannot be used: it has no output 'embedding'")
    assert await refusal(models, "tiny", "classify", served=("tiny",)) == (
        400,
        "unsupported_endpoint",
        "The model 'tiny' generates text; no model of this server is for this endpoint (openai_task classify in its "
        "config.pbtxt).",
    )


async def test_without_a_name_the_only_one() -> None:
    models = TaskModels()
    status, code, message = await refusal(models, None, *RERANK)
    assert (status, code) == (404, "model_not_found")
    assert message == "No model of this server is for this endpoint (openai_task rerank or score in its config.pbtxt)."
    models.replace([model("rerank", "ranks"), BROKEN])
    assert (await models.find(None, RERANK)).name == "ranks"
    assert (await refusal(models, None, "embeddings"))[0] == 503
    models.replace([model("rerank", "ranks"), model("score", "scores")])
    status, code, message = await refusal(models, None, *RERANK)
    assert (status, code) == (400, "missing_required_parameter")
    assert message == "'model' is missing: models for this endpoint: ranks, scores."
    # One that is hidden behind an engine is not counted.
    assert (await models.find(None, RERANK, served=("scores",))).name == "ranks"
