from __future__ import annotations

import asyncio

from openai_bls.api.common.events.answer_future import AnswerFuture
from openai_bls.core.errors import EngineError
from openai_bls.core.usage import Usage


class Total(AnswerFuture[int]):
    """Answers with the number of tokens."""

    made = 0

    def make_answer(self, usage: Usage) -> int:
        self.made += 1
        return usage.total_tokens


async def test_nothing_after_the_end_changes_an_answer() -> None:
    """Nor is it made when its client has gone."""
    answered, failed, left = Total(), Total(), Total()
    error = EngineError("no")
    answered.done(Usage.of(3, 4))
    failed.failed(error)
    left.answer.cancel()
    for total in (answered, failed, left):
        total.done(Usage.of(5, 6))
        total.failed(EngineError("late"))
    ends = await asyncio.gather(*(total.answer for total in (answered, failed)), return_exceptions=True)
    assert ends == [7, error]
    assert [total.made for total in (answered, failed, left)] == [1, 0, 0]
