"""Work of an engine on several requests that are one request of a client."""

from __future__ import annotations

import asyncio
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.core.errors import ApiError, EngineError, engine_failure
from openai_bls.pipeline.admission.ticket import Ticket
from openai_bls.pipeline.models.registry import EngineClient

T = TypeVar("T")


class EngineWork(ABC, Generic[T]):
    """Requests of one ticket, each of which gives one result; the engine has some of them at a time.

    Args:
        engine: client of the engine.
        requests: requests without ids.
        ticket: the client's request in the admission.
        order: indices of the requests in the order in which the engine gets them; None is their own.
    """

    def __init__(
        self,
        engine: EngineClient,
        requests: Sequence[GenerationRequest],
        ticket: Ticket,
        order: Iterable[int] | None = None,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._ticket = ticket
        self._order = iter(range(len(requests)) if order is None else order)
        self._in_flight: dict[int, int] = {}
        """Index of a request that the engine has, and its id there."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = len(requests)
        self._found: dict[int, T] = {}

    async def done(self) -> list[T]:
        """The result of each request, in their order.

        Raises:
            ApiError: the engine failed, or a result is of no use.
        """
        try:
            self._ticket.enter(self)
            await self._ended
        finally:
            for request_id in self._in_flight.values():
                self._engine.cancel(request_id)
            self._ticket.leave(self.completion_tokens(), done=not self._left)
        return [self._found[index] for index in range(len(self._requests))]

    def submit(self, count: int) -> None:
        """Hand the next requests to the engine, `count` of them."""
        for index in itertools.islice(self._order, count):
            request = msgspec.structs.replace(self._requests[index], request_id=self._engine.new_request_id())
            self._in_flight[index] = request.request_id
            self._engine.submit(request, functools.partial(self._take, index))

    def fail(self, error: ApiError) -> None:
        """End with `error`."""
        if not self._ended.done():
            self._ended.set_exception(error)

    @abstractmethod
    def completion_tokens(self) -> int:
        """Number of tokens that have been generated."""

    @abstractmethod
    def result(self, delta: TokenDelta) -> T | None:
        """Result of a request by one of its deltas; None if it is not in it.

        Raises:
            ApiError: it is of no use.
        """

    @abstractmethod
    def ended_one(self) -> None:
        """Go on after the end of a request that was not the last."""

    def _take(self, index: int, delta: TokenDelta) -> None:
        if self._ended.done():
            return
        is_last = delta.finish_reason is not None
        if is_last:
            del self._in_flight[index]
        try:
            failure = engine_failure(delta, cancelled="The engine is shutting down.")
            if failure is not None:
                raise failure
            if index not in self._found and (found := self.result(delta)) is not None:
                self._found[index] = found
            if is_last and index not in self._found:
                raise EngineError("The engine ended a request without its result.")
        except ApiError as error:
            self.fail(error)
            return
        if is_last:
            self._left -= 1
            if self._left:
                self.ended_one()
            else:
                self._ended.set_result(None)
