"""Live requests of the embedded engine, by their ids and by the keys of their sequences."""

from __future__ import annotations

from openai_bls.core.engine_types import GenerationRequest
from openai_bls_transformers.engine.request_state import RequestState
from openai_bls_transformers.model.lora import Adapters
from openai_bls_transformers.runners import prefix_cache


class UnloadedAdapterError(Exception):
    """A request names an adapter that was unloaded meanwhile; the message is for the client."""


class LiveRequests:
    """Requests that have no end yet; used by the engine's thread, but for `waiting`."""

    def __init__(self, model_name: str, adapters: Adapters | None) -> None:
        """Start with no request.

        Args:
            model_name: name of the served model, for messages.
            adapters: adapters, held while requests with them live; None if there are none.
        """
        self._model_name = model_name
        self._adapters = adapters
        self._states: dict[int, RequestState] = {}
        self._ids: dict[str, int] = {}
        self._next_key = 0
        self.waiting = 0
        """Requests that the batcher does not have yet."""

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._states

    def of_sequence(self, key: str) -> RequestState | None:
        """The request of a sequence; None if it has ended."""
        request_id = self._ids.get(key)
        return None if request_id is None else self._states[request_id]

    def add(self, request: GenerationRequest) -> RequestState:
        """Take a request, whose id is not live, and hold its adapter.

        Raises:
            UnloadedAdapterError: there is no such adapter any more.
        """
        adapter = None
        if request.lora_name is not None and self._adapters is not None:
            adapter = self._adapters.acquire(request.lora_name)
            if adapter is None:
                raise UnloadedAdapterError(f"lora_name: the adapter {request.lora_name!r} was unloaded")
        # Keys are never used twice: an id may be used again while the batcher still has its cancelled sequence.
        key = str(self._next_key) if adapter is None else prefix_cache.key(self._next_key, adapter.number)
        state = RequestState(key, request, self._model_name, adapter)
        self._next_key += 1
        self._states[request.request_id] = state
        self._ids[state.key] = request.request_id
        self.waiting += 1
        return state

    def batched(self, state: RequestState) -> None:
        """Note that the batcher has a request."""
        state.batched = True
        self.waiting -= 1

    def remove(self, request_id: int) -> RequestState | None:
        """Forget a request and let go of its adapter; None if it is not live."""
        state = self._states.pop(request_id, None)
        if state is None:
            return None
        del self._ids[state.key]
        self.waiting -= not state.batched
        if state.adapter is not None and self._adapters is not None:
            self._adapters.release(state.adapter)
        return state

    def remove_all(self) -> list[RequestState]:
        """Forget all requests."""
        return [state for request_id in list(self._states) if (state := self.remove(request_id)) is not None]
