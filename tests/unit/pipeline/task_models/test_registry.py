from __future__ import annotations

import pytest

from openai_bls.core.errors import ApiError
from openai_bls.pipeline.task_models.registry import Task, TaskModels
from tests.unit.pipeline.task_models.task_support import model

pytestmark = pytest.mark.anyio

BROKEN = model("embeddings", "broken", output=[])
RERANK: tuple[Task, ...] = ("rerank", "score")


async def refusal(
    models: TaskModels, name: str | None, *tasks: Task, served: tuple[str, ...] = ()
) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as info:
        await models.find(name, tasks, served)
    return info.value.status, info.value.code


async def test_by_name() -> None:
    models = TaskModels()
    models.replace([model("embeddings", "vectors"), model("rerank", "ranks"), BROKEN])
    assert (await models.find("vectors", ["embeddings"])).name == "vectors"
    assert (await models.find("ranks", RERANK)).name == "ranks"
    assert await refusal(models, "nope", "embeddings") == (404, "model_not_found")
    assert await refusal(models, "vectors", *RERANK) == (400, "unsupported_endpoint")
    assert await refusal(models, "broken", "embeddings") == (503, "model_unavailable")
    assert await refusal(models, "tiny", "classify", served=("tiny",)) == (400, "unsupported_endpoint")


async def test_without_a_name_the_only_one() -> None:
    models = TaskModels()
    assert await refusal(models, None, *RERANK) == (404, "model_not_found")
    models.replace([model("rerank", "ranks"), BROKEN])
    assert (await models.find(None, RERANK)).name == "ranks"
    assert (await refusal(models, None, "embeddings"))[0] == 503
    models.replace([model("rerank", "ranks"), model("score", "scores")])
    with pytest.raises(ApiError) as info:
        await models.find(None, RERANK)
    assert (info.value.status, info.value.code) == (400, "missing_required_parameter")
    # One that is hidden behind an engine is not counted.
    assert (await models.find(None, RERANK, served=("scores",))).name == "ranks"
