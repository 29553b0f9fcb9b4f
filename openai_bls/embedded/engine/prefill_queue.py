"""Queue of the requests that need work before their first step: a grammar compiled, or a forward pass of the prompt.

Grammars are compiled on other threads. Prompts have their passes on the engine's thread, between two steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from openai_bls.core.engine_types import TokenDelta
from openai_bls.embedded.engine.request_state import RequestState
from openai_bls.embedded.model import prompt_forward
from openai_bls.embedded.model.lora_layers import applied
from openai_bls.embedded.sampling.grammar_compiler import CompiledGrammar, GrammarCompiler
from openai_bls.embedded.sampling.logits_processors import HostLogitsProcessors

# Tokens and seconds of prompt passes between two steps; more than one prompt only within both.
_PASS_TOKENS = 2048
_PASS_S = 0.02

Prepared = tuple[RequestState, TokenDelta | None]
"""A request that leaves the queue, and its end; None if it is ready for the batcher."""


class PrefillQueue:
    """Requests on their way to the batcher; used by the engine's thread alone."""

    def __init__(self, model: Any, compiler: GrammarCompiler | None, wake: Callable[[], None]) -> None:
        """Start with no request.

        Args:
            model: a transformers causal language model.
            compiler: compiler of grammars, closed by `close`; its results come back through `compiled`. None: no
                grammars.
            wake: makes the engine call `examine` soon.
        """
        self._model = model
        self._compiler = compiler
        self._wake = wake
        self._to_examine: deque[RequestState] = deque()

    def start(self, state: RequestState) -> list[Prepared]:
        """Take a request; returns it if there is nothing to be done for it."""
        request = state.request
        try:
            if request.grammar is not None and request.max_tokens and self._compiler is not None:
                self._compiler.start(state.key, request)
                return []
            if HostLogitsProcessors.needed(request):
                state.processors = HostLogitsProcessors(request)
            return self._pass_or_go_on(state)
        except Exception as error:
            return [(state, state.failed(error))]

    def cancel(self, state: RequestState) -> None:
        """Do no more for a request than has begun."""
        if self._compiler is not None:
            self._compiler.cancel(state.key)

    def compiled(self, state: RequestState, result: CompiledGrammar) -> list[Prepared]:
        """Go on with a request whose grammar is compiled, or is none."""
        if result.constraint is None:
            return [(state, state.end("error", error=result.error, invalid=result.invalid))]
        try:
            state.processors = HostLogitsProcessors(state.request, result.constraint)
            return self._pass_or_go_on(state)
        except Exception as error:
            return [(state, state.failed(error))]

    def examine(self, is_live: Callable[[RequestState], bool]) -> list[Prepared]:
        """Run the passes of waiting prompts that are live still, within the bounds of one pause between steps."""
        done: list[Prepared] = []
        tokens = 0
        until = time.monotonic() + _PASS_S
        while self._to_examine:
            state = self._to_examine[0]
            if is_live(state):
                length = len(state.request.prompt_token_ids)
                if tokens and (tokens + length > _PASS_TOKENS or time.monotonic() > until):
                    self._wake()
                    break
                tokens += length
                done.append(self._examine(state))
            self._to_examine.popleft()
        return done

    def close(self) -> None:
        """Let go of the model and of all requests."""
        if self._compiler is not None:
            self._compiler.close()
        self._model = None
        self._to_examine.clear()

    def _pass_or_go_on(self, state: RequestState) -> list[Prepared]:
        if not prompt_forward.needed(state.request):
            return [_ready(state)]
        self._to_examine.append(state)
        return []

    def _examine(self, state: RequestState) -> Prepared:
        try:
            with applied(self._model, [state.lora_slot]):
                found = prompt_forward.prompt_pass(self._model, state.request)
            state.prompt_logprobs = found.prompt_logprobs
            if found.embedding is not None:
                return state, state.end("stop", embedding=found.embedding)
            return _ready(state)
        except Exception as error:
            return state, state.failed(error)


def _ready(state: RequestState) -> Prepared:
    """A request for the batcher, if there is anything to sample."""
    if not state.request.max_tokens:
        return state, state.end("length")
    if state.processors is not None and state.processors.constraint is not None and state.processors.constraint.ended:
        return state, state.end("stop")
    return state, None
