"""The end of a writer that makes one whole answer, whatever that is: resolved once, by the answer or an error."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from openai_bls.api.chat.chunks import Usage
from openai_bls.core.errors import ApiError

T = TypeVar("T")


class Whole(ABC, Generic[T]):
    """Resolves `answer` at the end of a request. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        """Cancelled if nobody waits for it any more."""

    @abstractmethod
    def whole(self, usage: Usage) -> T:
        """The answer, all of whose sequences have ended."""

    def done(self, usage: Usage) -> None:
        """Resolve the answer."""
        if not self.answer.done():
            self.answer.set_result(self.whole(usage))

    def failed(self, error: ApiError) -> None:
        """Resolve with the error."""
        if not self.answer.done():
            self.answer.set_exception(error)
