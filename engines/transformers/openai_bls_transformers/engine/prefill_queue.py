"""Queue of the requests that need work before their first step: a grammar compiled, images prepared, or a forward pass
of the prompt.

Grammars are compiled, and images prepared, on other threads. Prompts have their passes on the engine's thread, between
two steps.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from openai_bls.core.engine_types import TokenDelta
from openai_bls.engines.grammars.compiler import CompiledGrammar, GrammarCompiler
from openai_bls.engines.not_finite import NotFiniteError
from openai_bls_transformers.attention_spec import LENGTH_DEPENDENT_ROPE, rope_types
from openai_bls_transformers.engine.request_state import RequestState
from openai_bls_transformers.model import prompt_forward
from openai_bls_transformers.model.image_inputs import ImageInputs
from openai_bls_transformers.model.lora_layers import applied
from openai_bls_transformers.sampling.logits_processors import HostLogitsProcessors

logger = logging.getLogger(__name__)

# Tokens of the prompt passes between two steps, padding included: as many as take `_PASS_S`, within these bounds. More
# than one prompt only within them.
_LEAST_PASS_TOKENS = 256
_MOST_PASS_TOKENS = 2048
_PASS_S = 0.02

Prepared = tuple[RequestState, TokenDelta | None]
"""A request that leaves the queue, and its end; None if it is ready for the batcher."""


class PrefillQueue:
    """Requests on their way to the batcher; used by the engine's thread alone."""

    def __init__(
        self, model: Any, compiler: GrammarCompiler | None, wake: Callable[[], None], images: ImageInputs | None = None
    ) -> None:
        """Start with no request.

        Args:
            model: a transformers causal language model.
            compiler: compiler of grammars, closed by `close`; its results come back through `compiled`. None: no
                grammars.
            wake: makes the engine call `examine` soon.
            images: prepares images, closed by `close`; its results come back through `prepared`. None: no images.
        """
        self._model = model
        self._images = images
        self._compiler = compiler
        self._wake = wake
        self._to_examine: deque[RequestState] = deque()
        self._of_one_length = bool(rope_types(model.config.get_text_config()) & LENGTH_DEPENDENT_ROPE)
        """Prompts share a pass only if they are of one length: others would change how positions are told."""
        self._token_s = 0.0
        """Seconds that a token of a pass has taken lately; 0 before the first."""
        self._rest_until = -math.inf
        """Time on the monotonic clock until which steps go on without passes between them."""

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
        if self._images is not None:
            self._images.cancel(state.key)

    def compiled(self, state: RequestState, result: CompiledGrammar) -> list[Prepared]:
        """Go on with a request whose grammar is compiled, or is none."""
        if result.constraint is None:
            return [(state, state.end("error", error=result.error, invalid=result.invalid))]
        try:
            state.processors = HostLogitsProcessors(state.request, result.constraint)
            return self._pass_or_go_on(state)
        except Exception as error:
            return [(state, state.failed(error))]

    def prepared(self, state: RequestState) -> list[Prepared]:
        """Go on with a request whose images are prepared, or are refused."""
        if state.images is not None and state.images.error:
            return [(state, state.end("error", error=state.images.error, invalid=state.images.invalid))]
        return [_ready(state)]

    def examine(self, is_live: Callable[[RequestState], bool], are_steps_due: Callable[[], bool]) -> list[Prepared]:
        """Run the passes of waiting prompts that are live still, within the bounds of one pause between steps.

        A long prompt has its pass whole, which may take many steps' time: where sequences wait for their steps, these
        have as much time after the passes as the passes had.

        Args:
            is_live: prompts of which it is false are dropped.
            are_steps_due: whether there are sequences that wait for steps; asked only where prompts wait.
        """
        if not self._to_examine:
            return []
        began_at = time.monotonic()
        if began_at < self._rest_until and are_steps_due():
            self._wake()
            return []
        done = self._pass_within_bounds(is_live)
        ended_at = time.monotonic()
        self._rest_until = ended_at + (ended_at - began_at)
        if self._to_examine:
            self._wake()
        return done

    def _pass_within_bounds(self, is_live: Callable[[RequestState], bool]) -> list[Prepared]:
        done: list[Prepared] = []
        room = _LEAST_PASS_TOKENS
        if self._token_s:
            room = min(_MOST_PASS_TOKENS, max(room, int(_PASS_S / self._token_s)))
        while batch := self._next_batch(is_live, room, alone=not done):
            began_at = time.monotonic()
            done += self._examine(batch)
            tokens = len(batch) * max(len(state.request.prompt_token_ids) for state in batch)
            token_s = (time.monotonic() - began_at) / tokens
            self._token_s = (self._token_s + token_s) / 2 if self._token_s else token_s
            room -= tokens
        return done

    def _next_batch(self, is_live: Callable[[RequestState], bool], room: int, *, alone: bool) -> list[RequestState]:
        """Take the next prompts that share a pass, in the order in which they came.

        Args:
            is_live: others are dropped.
            room: tokens of the pass, padding included.
            alone: one prompt may have more.
        """
        batch: list[RequestState] = []
        longest = 0
        while self._to_examine:
            state = self._to_examine[0]
            if is_live(state):
                length = len(state.request.prompt_token_ids)
                most = max(longest, length)
                if (len(batch) + 1) * most > room and (batch or not alone):
                    break
                if batch and not (_shares(state) and _shares(batch[0])):
                    break
                if batch and self._of_one_length and length != longest:
                    break
                batch.append(state)
                longest = most
            self._to_examine.popleft()
        return batch

    def close(self) -> None:
        """Let go of the model and of all requests."""
        if self._compiler is not None:
            self._compiler.close()
        if self._images is not None:
            self._images.close()
        self._model = None
        self._to_examine.clear()

    def _pass_or_go_on(self, state: RequestState) -> list[Prepared]:
        if state.request.media is not None and self._images is not None:
            state.images = self._images.start(state.key, state.request)
            return []
        if not prompt_forward.needed(state.request):
            return [_ready(state)]
        self._to_examine.append(state)
        return []

    def _examine(self, batch: list[RequestState]) -> list[Prepared]:
        if len(batch) > 1:
            try:
                with applied(self._model, [state.lora_slot for state in batch]):
                    found = prompt_forward.embeddings(self._model, [state.request for state in batch])
                return [(state, _embedded(state, one)) for state, one in zip(batch, found, strict=True)]
            except Exception:
                # It may be one of them that cannot be done.
                logger.warning("a pass over %d prompts failed; each has one of its own", len(batch), exc_info=True)
        return [self._examine_alone(state) for state in batch]

    def _examine_alone(self, state: RequestState) -> Prepared:
        try:
            with applied(self._model, [state.lora_slot]):
                found = prompt_forward.prompt_pass(self._model, state.request)
            state.prompt_logprobs = found.prompt_logprobs
            if found.embedding is not None:
                return state, _embedded(state, found.embedding)
            return _ready(state)
        except Exception as error:
            return state, state.failed(error)


def _shares(state: RequestState) -> bool:
    """True if a request wants an embedding and nothing else, which several prompts may get by one pass."""
    return state.request.pooling is not None and state.request.prompt_logprobs is None


def _embedded(state: RequestState, embedding: list[float]) -> TokenDelta:
    """End of a request that wants an embedding."""
    if not all(map(math.isfinite, embedding)):
        return state.failed(NotFiniteError())
    return state.end("stop", embedding=embedding)


def _ready(state: RequestState) -> Prepared:
    """A request for the batcher, if there is anything to sample."""
    if not state.request.max_tokens:
        return state, state.end("length")
    if state.processors is not None and state.processors.constraint is not None and state.processors.constraint.ended:
        return state, state.end("stop")
    return state, None
