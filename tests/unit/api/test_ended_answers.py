"""Answers that have ended, of which nothing is left."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from openai_bls.api.chat.writers import AnswerWriter
from tests.unit.api.http_support import application
from tests.unit.core_support import Bench, ask, until


@pytest.mark.parametrize("end", ["length", "error", "left"])
async def test_an_answer_that_has_ended_is_gone(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[AnswerWriter]] = []
    init = AnswerWriter.__init__

    def noted(self: AnswerWriter, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(AnswerWriter, "__init__", noted)
    bench = Bench()
    gc.collect()
    gc.disable()
    try:
        body = {"prompt": "a", "logprobs": 1, "n": 2}
        task = asyncio.ensure_future(ask(application(bench), "POST", "/v1/completions", body))
        await until(lambda: bench.engine.requests)
        for at in range(2):
            bench.engine.deliver(at, "ab")
        if end == "left":
            task.cancel()
        else:
            for at in range(2):
                bench.engine.deliver(at, "c", end)
        await asyncio.wait([task])
        del task  # whose error knows where it was raised
        # Not only once the garbage is collected, which may be long after.
        await until(lambda: made[0]() is None)
    finally:
        gc.enable()
