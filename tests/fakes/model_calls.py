"""Other models of the server, as functions: `ModelCalls` without one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from openai_bls.transport.model_calls import Array, Arrays, ModelCallError, ModelTimeoutError, ModelUnavailableError


class FakeModelCalls:
    """Functions by the names of models: `models` answer once, `streams` any number of times.

    A function takes the inputs by name, and may be a coroutine, or raise a ModelCallError. What was not asked for is
    left out of an answer; what is missing from it is an error, as it is of a server.
    """

    def __init__(self) -> None:
        self.models: dict[str, Callable[[Mapping[str, Array]], Arrays | Awaitable[Arrays]]] = {}
        self.streams: dict[str, Callable[[Mapping[str, Array]], Iterable[Arrays] | AsyncIterator[Arrays]]] = {}
        self.called: list[tuple[str, dict[str, Array]]] = []
        """Model and inputs of each call and stream."""
        self.keys: list[str] = []
        """API key of each call and stream."""
        self.closed_streams = 0

    async def call(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float, key: str = ""
    ) -> Arrays:
        self.keys.append(key)
        self.called.append((model, dict(inputs)))

        async def answer() -> Arrays:
            found: Any = _find(self.models, model)(inputs)
            return _wanted(model, await found if inspect.isawaitable(found) else found, outputs)

        try:
            return await asyncio.wait_for(answer(), timeout_s)
        except asyncio.TimeoutError:
            raise ModelTimeoutError(f"the model '{model}' has not answered within {timeout_s:g} s") from None

    async def stream(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, timeout_s: float, key: str = ""
    ) -> AsyncGenerator[Arrays, None]:
        self.keys.append(key)
        self.called.append((model, dict(inputs)))
        responses: Any = _find(self.streams, model)(inputs)
        try:
            if isinstance(responses, AsyncIterator):
                async for response in responses:
                    yield _there(response, outputs)
            else:
                for response in responses:
                    yield _there(response, outputs)
        finally:
            self.closed_streams += 1


def _find(models: Mapping[str, Callable[[Mapping[str, Array]], Any]], model: str) -> Callable[..., Any]:
    if model not in models:
        raise ModelUnavailableError(f"the model '{model}': Model '{model}' is not ready.")
    return models[model]


def _there(arrays: Arrays, outputs: Sequence[str]) -> Arrays:
    """As over gRPC, which says nothing of an output that a response leaves out."""
    return {name: arrays[name] for name in outputs if name in arrays}


def _wanted(model: str, arrays: Arrays, outputs: Sequence[str]) -> Arrays:
    missing = [name for name in outputs if name not in arrays]
    if missing:
        raise ModelCallError(f"the model '{model}' answered without {', '.join(missing)}")
    return {name: arrays[name] for name in outputs}
