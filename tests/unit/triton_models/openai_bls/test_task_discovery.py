from __future__ import annotations

import asyncio
import logging
import re

import pytest

from openai_bls.core.engine_types import EngineInfo
from openai_bls.output.detect import ModelFormats
from openai_bls.pipeline.models.registry import Models, ServedModel
from openai_bls.triton_models.openai_bls import task_discovery
from openai_bls.triton_models.openai_bls.task_discovery import TaskDiscovery
from openai_bls.triton_models.server.model_index import ModelIndexError
from tests.unit.core_support import FakeEngineClient, FakePrompts, engine_info, tiny_detokenizers
from tests.unit.pipeline.task_models.task_support import FakeIndex, config

pytestmark = pytest.mark.anyio


def engines(info: EngineInfo | None = None) -> Models:
    served = ServedModel(
        info or engine_info(), FakeEngineClient(), FakePrompts(), tiny_detokenizers(), ModelFormats(), ("openai_bls",)
    )
    return Models([served])


def names(models: Models) -> list[str]:
    return [task.name for task in models.tasks]


async def test_models_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    index = FakeIndex(config(None, "tensorrt_llm"), config("embeddings", "vectors"))
    models = engines()
    discovery = TaskDiscovery(index, models, 1.0)
    await discovery.look()
    assert names(models) == ["vectors"]
    assert models.names == ["tiny", "openai_bls", "vectors"]
    assert "serves vectors too: openai_task embeddings" in caplog.text
    caplog.clear()
    await discovery.look()
    assert not caplog.text
    index.loaded["ranks"] = config("rerank", "ranks")
    del index.loaded["vectors"]
    await discovery.look()
    assert names(models) == ["ranks"]
    assert "serves vectors no longer" in caplog.text
    # Between the list and the question for its configuration.
    index.gone.add("ranks")
    await discovery.look()
    assert names(models) == []


async def test_a_fault_is_logged_by_name_once_and_mended_by_a_reload(caplog: pytest.LogCaptureFixture) -> None:
    index = FakeIndex(config("embeddings", "vectors", output=[]))
    models = engines()
    discovery = TaskDiscovery(index, models, 1.0)
    for _ in range(3):
        await discovery.look()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert re.search("model vectors .*'embedding'", record.message)
    assert models.names == ["tiny", "openai_bls"]
    index.loaded["vectors"] = config("embeddings", "vectors")
    await discovery.look()
    assert "vectors" in models.names


async def test_a_reload_gives_a_model_a_task() -> None:
    """Models without one are asked again in turn, one a look."""
    index = FakeIndex(*(config(None, f"model_{number}") for number in range(4)))
    models = engines()
    discovery = TaskDiscovery(index, models, 1.0)
    await discovery.look()
    index.loaded["model_3"] = config("embeddings", "model_3")
    for _ in range(4):
        assert names(models) == []
        await discovery.look()
    assert names(models) == ["model_3"]
    assert [len(asked) for asked in index.asked] == [4, 1, 1, 1, 1]
    # One that a request names is asked at once.
    index.loaded["model_2"] = config("chat", "model_2")
    await models.look_for("model_2")
    assert names(models) == ["model_2", "model_3"]
    # The date is that of the first sight.
    task = models.tasks.get("model_3")
    await discovery.look()
    assert models.tasks.get("model_3") == task


async def test_engines_keep_their_names(caplog: pytest.LogCaptureFixture) -> None:
    models = engines(engine_info(lora_names=("poet",)))
    await TaskDiscovery(FakeIndex(config("chat", "poet"), config("chat", "openai_bls")), models, 1.0).look()
    assert models.names == ["tiny", "openai_bls", "poet"]
    assert models.task_model("poet") is None
    assert "model poet declares openai_task chat" in caplog.text


async def test_a_server_that_does_not_tell(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    index = FakeIndex(config("chat", "agent"))
    models = engines()
    discovery = TaskDiscovery(index, models, 1.0)
    await discovery.look()
    index.error = "Triton's HTTP port 8000 does not answer"
    caplog.clear()
    await discovery.look()
    assert not caplog.records
    monkeypatch.setattr(task_discovery, "QUIET_S", 0)
    for _ in range(9):
        await discovery.look()
    # What was known stays.
    assert names(models) == ["agent"]
    (record,) = caplog.records
    assert "is not known: Triton's HTTP port 8000 does not answer" in record.message


async def test_an_unknown_name_is_looked_for_at_once_and_together() -> None:
    index = FakeIndex(config("chat", "agent"))
    models = engines()
    TaskDiscovery(index, models, 3600.0)
    await asyncio.gather(*(models.look_for("agent") for _ in range(50)))
    assert models.task_model("agent") is not None
    # The first ask makes a look; all that came during it share the next.
    assert len(index.asked) <= 2
    looks = len(index.asked)
    for known in ("agent", "tiny", "openai_bls", None):
        await models.look_for(known)
    assert len(index.asked) == looks


async def test_a_look_that_fails_is_shared_as_well() -> None:
    class Silent(FakeIndex):
        tries = 0

        async def ready(self) -> list[str]:
            self.tries += 1
            await asyncio.sleep(0)
            raise ModelIndexError("no answer")

    index = Silent()
    models = engines()
    discovery = TaskDiscovery(index, models, 3600.0)
    await asyncio.gather(*(models.look_for(f"agent{number}") for number in range(50)))
    assert index.tries <= 2
    # Nor is what requests ask for kept for ever.
    assert not discovery._wanted


async def test_run_looks_again_and_again() -> None:
    index = FakeIndex()
    models = engines()
    running = asyncio.get_running_loop().create_task(TaskDiscovery(index, models, 0.001).run())
    index.loaded["agent"] = config("chat", "agent")
    while not names(models):
        await asyncio.sleep(0.001)
    del index.loaded["agent"]
    while names(models):
        await asyncio.sleep(0.001)
    running.cancel()
