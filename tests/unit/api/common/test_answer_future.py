from __future__ import annotations

import pytest

from openai_bls.api.common.answer_future import AnswerFuture
from openai_bls.core.errors import EngineError
from openai_bls.core.usage import Usage

USAGE = Usage.of(3, 4)


class Total(AnswerFuture[int]):
    """Answers with the number of tokens."""

    made = 0

    def make_answer(self, usage: Usage) -> int:
        self.made += 1
        return usage.total_tokens


async def test_the_answer() -> None:
    total = Total()
    total.done(USAGE)
    assert await total.answer == 7
    # Nothing after the end changes it.
    total.done(USAGE)
    total.failed(EngineError("late"))
    assert (await total.answer, total.made) == (7, 1)


async def test_an_error() -> None:
    total = Total()
    error = EngineError("no")
    total.failed(error)
    total.done(USAGE)
    with pytest.raises(EngineError) as caught:
        await total.answer
    assert caught.value is error
    assert total.made == 0


async def test_an_answer_that_nobody_waits_for_is_not_made() -> None:
    total = Total()
    total.answer.cancel()
    total.done(USAGE)
    total.failed(EngineError("no"))
    assert total.made == 0
