"""Future of one whole answer: the end of a writer that does not stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from openai_bls.core.errors import ApiError
from openai_bls.core.usage import Usage
from openai_bls.pipeline.generation.collector import Collector

T = TypeVar("T")


class AnswerFuture(Collector, ABC, Generic[T]):
    """Resolves `answer` at the end of a request. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        """The answer or its error; cancelled if nobody waits for it any more."""

    @abstractmethod
    def make_answer(self, usage: Usage) -> T:
        """The answer, all of whose sequences have ended."""

    def done(self, usage: Usage) -> None:
        """Resolve the answer."""
        if not self.answer.done():
            self.answer.set_result(self.make_answer(usage))

    def failed(self, error: ApiError) -> None:
        """Resolve with the error."""
        if not self.answer.done():
            self.answer.set_exception(error)
