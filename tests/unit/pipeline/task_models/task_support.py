"""Configurations of task models, as the server tells them, and a server that tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai_bls.pipeline.task_models.registry import TaskModel
from openai_bls.triton_models.openai_bls.task_config import task_model
from openai_bls.triton_models.server.model_index import ModelIndexError


def tensor(name: str, data_type: str = "TYPE_STRING", dims: Sequence[int | str] = (1,), **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


TENSORS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "chat": ([tensor("request")], [tensor("response")]),
    "classify": ([tensor("text")], [tensor("scores", "TYPE_FP32", [2])]),
    "embeddings": ([tensor("text")], [tensor("embedding", "TYPE_FP32", [4])]),
    "rerank": ([tensor("query"), tensor("document")], [tensor("score", "TYPE_FP32")]),
    "score": ([tensor("query"), tensor("document")], [tensor("score", "TYPE_FP32")]),
    "speech": ([tensor("text")], [tensor("audio", "TYPE_INT16", [-1])]),
    "transcription": ([tensor("audio", "TYPE_FP32", [-1])], [tensor("text")]),
}


def config(task: str | None, name: str = "other", **changes: Any) -> dict[str, Any]:
    """A good model of `task`; `openai_*` among `changes` are parameters."""
    inputs, outputs = TENSORS.get(task or "", ([], []))
    parameters = {} if task is None else {"openai_task": task}
    if task == "classify":
        parameters["openai_labels"] = "harm, spam"
    if task == "speech":
        parameters["openai_sample_rate"] = "24000"
    parameters |= {key: value for key, value in changes.items() if key.startswith("openai_")}
    return {
        "name": name,
        "max_batch_size": 8,
        "input": inputs,
        "output": outputs,
        "parameters": {key: {"string_value": value} for key, value in parameters.items() if value is not None},
        **{key: value for key, value in changes.items() if not key.startswith("openai_")},
    }


def model(task: str, name: str = "other", **changes: Any) -> TaskModel:
    found = task_model(config(task, name, **changes), created=7)
    assert found is not None
    return found


class FakeIndex:
    """A server with `loaded` models."""

    def __init__(self, *loaded: Mapping[str, Any]) -> None:
        self.loaded = {config["name"]: dict(config) for config in loaded}
        self.asked: list[list[str]] = []
        self.error: str | None = None
        self.gone: set[str] = set()
        """Models that go between the two questions."""

    async def ready(self) -> list[str]:
        if self.error is not None:
            raise ModelIndexError(self.error)
        return list(self.loaded)

    async def failures(self) -> dict[str, str]:
        return {}

    async def configs(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        self.asked.append(list(names))
        return {name: self.loaded[name] for name in names if name not in self.gone}
