"""What is told of engines that fail to load; tests/triton/engines/test_failed_engine.py has a real server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from openai_bls.triton_models.openai_bls import engine_failures
from openai_bls.triton_models.openai_bls.engine_failures import EngineFailures
from openai_bls.triton_models.server.model_index import ModelIndexError

pytestmark = pytest.mark.anyio


@dataclass
class Names:
    engine: str
    preprocessing: str


@dataclass
class Connection:
    backend: Names
    complete: bool = False


@dataclass
class Index:
    """Answers one after the other; before each but the first, what is connected by then."""

    answers: list[dict[str, str] | ModelIndexError]
    connects: list[list[Connection]] = field(default_factory=list)
    told: list[dict[str, str]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    async def failures(self) -> dict[str, str]:
        self.told.append(dict(self.failed))
        for connection in self.connects.pop(0) if self.connects else ():
            connection.complete = True
        answer = self.answers.pop(0)
        if isinstance(answer, ModelIndexError):
            raise answer
        return answer


async def test_reasons_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_failures, "INTERVAL_S", 0.0)
    first, second = (Connection(Names(f"engine{n}", f"preprocessing{n}")) for n in (1, 2))
    index = Index(
        [
            ModelIndexError("closed"),
            {"engine2": "cheese", "another": "its own"},
            {"preprocessing2": "no tokenizer"},
            {"another": "its own"},
            {},
        ],
        [[first], [], [second], [], []],
    )
    await EngineFailures(cast("Any", index), cast("Any", [first, second]), index.failed, lambda: None).run()
    assert index.told == [{}, {}, {"engine2": "cheese"}, {"engine2": "no tokenizer"}]
    assert index.failed == {}
    assert index.answers == [{}]
