"""A request's `model` is looked up once, and what it names is passed on."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.pipeline.models.registry import Models, Target
from tests.unit.api.http_support import asked
from tests.unit.core_support import Bench

USER = [{"role": "user", "content": "hi"}]
MESSAGES = {"messages": USER, "max_tokens": 5}
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": MESSAGES,
}
OTHERS: dict[str, dict[str, Any]] = {
    **{f"{path}/render": body for path, body in GENERATING.items()},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages/count_tokens": {"messages": USER},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}
CASES = [(path, {**body, "stream": stream}) for path, body in GENERATING.items() for stream in (False, True)]


@pytest.mark.parametrize(("path", "body"), [*CASES, *OTHERS.items()])
def test_a_model_is_looked_up_once(path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str | None] = []
    find = Models.engine_target

    def counted(models: Models, name: str | None) -> Target | None:
        names.append(name)
        return find(models, name)

    monkeypatch.setattr(Models, "engine_target", counted)
    bench = Bench()

    def feed() -> None:
        if bench.engine.requests:
            bench.engine.deliver(0, "a", "stop")

    assert asked(bench, path, {**body, "model": "tiny"}, feed).status == 200
    assert names == ["tiny"]
