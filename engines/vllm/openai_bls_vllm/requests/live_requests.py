"""Live requests of the engine `vllm`: from a request to its start in vLLM, and from a step's outputs to deltas.

Used by the engine's thread alone.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, TokenDelta
from openai_bls.engines import capabilities
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.engines.not_finite import NotFiniteError, not_finite_end
from openai_bls_vllm.grammars.grammars import Constrained
from openai_bls_vllm.interface import Generation, LoraAdapter
from openai_bls_vllm.pooling import pooling_params
from openai_bls_vllm.requests.deltas import Cursor, nans
from openai_bls_vllm.requests.sampling import Runner, refusal, sampling_params

logger = logging.getLogger(__name__)


class RequestState:
    """A request that has not ended."""

    __slots__ = ("adapter", "client_id", "cursor", "key")

    def __init__(self, request: GenerationRequest, key: str, adapter: LoraAdapter | None) -> None:
        """Args: key: id in vLLM, which no other request ever has; adapter: LoRA adapter that the request names."""
        self.client_id = request.request_id
        self.key = key
        self.adapter = adapter
        self.cursor = Cursor(request)


class Step(NamedTuple):
    """Deltas of a step."""

    deltas: list[TokenDelta]
    generated_tokens: int
    stopped: list[str]
    """Ids in vLLM of requests that ended here and go on there."""


class LiveRequests:
    """Requests that have not ended."""

    def __init__(self, model_name: Callable[[], str]) -> None:
        """Args: model_name: name of the served model, for messages; known once it is loaded."""
        self._model_name = model_name
        self._live: dict[str, RequestState] = {}
        """Live requests by their ids in vLLM."""
        self._keys: dict[int, str] = {}
        """Id of a live request → its id in vLLM."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def start(
        self,
        request: GenerationRequest,
        info: EngineInfo,
        runner: Runner,
        adapter: LoraAdapter | None,
    ) -> Generation | TokenDelta | None:
        """Check a request.

        Args:
            request: request that was submitted.
            info: facts of the engine.
            runner: model runner of vLLM.
            adapter: adapter that the request names.

        Returns:
            What vLLM is to generate, without the request's grammar, or the only delta of a request that it does not
            see, or None for an id that is live already.
        """
        request_id = request.request_id
        if request_id in self._keys:
            logger.warning("request id %d is already live: ignored", request_id)
            return None
        problem = capabilities.refusal(request, info) or refusal(request, info, runner)
        if not problem and request.lora_name is not None and adapter is None:
            problem = f"lora_name: the adapter {request.lora_name!r} was unloaded"
        if problem:
            return TokenDelta(request_id, [], "error", error=problem, invalid=True)
        if not request.max_tokens and request.prompt_logprobs is None and request.pooling is None:
            return TokenDelta(request_id, [], "length")
        key = str(next(self._numbers))
        self._keys[request_id] = key
        self._live[key] = RequestState(request, key, adapter)
        if request.pooling is not None:
            return Generation(key, request.prompt_token_ids, pooling_params(request), adapter, pooling=True)
        params = sampling_params(request, info, runner)
        return Generation(
            key,
            request.prompt_token_ids,
            params,
            adapter,
            media=request.media,
            priority=request.priority,
            owner=request.owner,
        )

    def constrain(self, generation: Generation, constrained: Constrained) -> Generation | None:
        """The same with its grammar; None if the request has ended meanwhile."""
        state = self._live.get(generation.request_id)
        if state is None:
            return None
        state.cursor.progress = constrained.progress
        return msgspec.structs.replace(
            generation,
            params=generation.params | constrained.params,
            structured_outputs=constrained.structured_outputs,
        )

    def advance(self, outputs: Sequence[Any]) -> Step:
        """One delta of each output (`interface.Output`) that is of a live request and holds anything."""
        live = self._live
        deltas: list[TokenDelta] = []
        stopped: list[str] = []
        generated = 0
        for output in outputs:
            state = live.get(output.request_id)
            if state is None:
                continue
            if state.cursor.plain and output.finish_reason is None and not nans(output):
                # Nearly every token comes this way.
                token_ids = output.new_token_ids
                generated += len(token_ids)
                deltas.append(TokenDelta(state.client_id, token_ids))
                continue
            delta = self._advance(state, output)
            if delta is None:
                continue
            generated += len(delta.token_ids) + (delta.stop_token_id is not None)
            if delta.finish_reason is not None:
                self._forget(state)
                if output.finish_reason is None:
                    stopped.append(state.key)
            deltas.append(delta)
        return Step(deltas, generated, stopped)

    def cancel(self, request_id: int) -> str | None:
        """Forget a request; its id in vLLM, or None if it is not live."""
        key = self._keys.get(request_id)
        if key is not None:
            self._forget(self._live[key])
        return key

    def end(self, key: str, problem: str, *, invalid: bool) -> TokenDelta | None:
        """The last delta of a request that ends with an error; None if it has ended.

        Args:
            key: the request's id in vLLM.
            problem: message for the client.
            invalid: True if the request is at fault, False if the engine is.
        """
        state = self._live.get(key)
        if state is None:
            return None
        self._forget(state)
        return TokenDelta(state.client_id, [], "error", error=problem, invalid=invalid)

    def end_all(self) -> tuple[list[int], list[str]]:
        """Forget all requests; their ids, and those in vLLM."""
        ended = list(self._keys), list(self._live)
        self._keys.clear()
        self._live.clear()
        return ended

    def use(self, number: int) -> bool:
        """True if a live request names the LoRA adapter of a number."""
        return any(state.adapter is not None and state.adapter.number == number for state in self._live.values())

    def _advance(self, state: RequestState, output: Any) -> TokenDelta | None:
        """Delta of an output; whatever goes wrong ends this request alone."""
        try:
            return state.cursor.advance(output)
        except GrammarError as error:
            return TokenDelta(state.client_id, [], "error", error=str(error), invalid=True)
        except NotFiniteError:
            return not_finite_end(state.cursor.request, self._model_name())
        except Exception:
            logger.exception("a request's output could not be read")
            return TokenDelta(state.client_id, [], "error", error=ENGINE_FAILED)

    def _forget(self, state: RequestState) -> None:
        del self._live[state.key]
        del self._keys[state.client_id]
