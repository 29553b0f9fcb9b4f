"""What has to be done for some requests before their first step: compile a grammar, look at a prompt.

Grammars are compiled on other threads. Prompts are looked at on the engine's, between two steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from openai_bls.core.engine_types import TokenDelta
from openai_bls.engines.embedded import prompt_forward
from openai_bls.engines.embedded.grammar_compiler import Compiled, Compiler
from openai_bls.engines.embedded.grammar_matcher import ConstraintFactory
from openai_bls.engines.embedded.logits_processors import Rules
from openai_bls.engines.embedded.request_state import Live

# Of the prompts looked at between two steps; more than one prompt only within both.
_PASS_TOKENS = 2048
_PASS_S = 0.02

Prepared = tuple[Live, TokenDelta | None]
"""A request that is done with here: its end, or None if it is ready for the batcher."""


class Preparer:
    """Requests on their way to the batcher; used by the engine's thread alone."""

    def __init__(
        self,
        model: Any,
        vocab_size: int,
        factory: ConstraintFactory | None,
        on_compiled: Callable[[Compiled], object],
        wake: Callable[[], None],
    ) -> None:
        """Start no thread yet.

        Args:
            model: a transformers causal language model.
            vocab_size: its.
            factory: compiles grammars; None if there is nothing that can.
            on_compiled: called from another thread; the result is to come back through `compiled`.
            wake: makes the engine call `examine` soon.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._compiler = Compiler(factory, on_compiled) if factory is not None else None
        self._wake = wake
        self._to_examine: deque[Live] = deque()

    def start(self, live: Live) -> list[Prepared]:
        """Take a request; returns it if there is nothing to be done for it."""
        request = live.request
        try:
            if request.grammar is not None and request.max_tokens and self._compiler is not None:
                self._compiler.start(live.key, request)
                return []
            if Rules.needed(request):
                live.rules = Rules(request, self._vocab_size)
            return self._pass_or_go_on(live)
        except Exception as error:
            return [(live, live.failed(error))]

    def cancel(self, live: Live) -> None:
        """Do no more for a request than has begun."""
        if self._compiler is not None:
            self._compiler.cancel(live.key)

    def compiled(self, live: Live, result: Compiled) -> list[Prepared]:
        """Go on with a request whose grammar is compiled, or is none."""
        if result.constraint is None:
            return [(live, live.end("error", error=result.error, invalid=result.invalid))]
        try:
            live.rules = Rules(live.request, self._vocab_size, result.constraint)
            return self._pass_or_go_on(live)
        except Exception as error:
            return [(live, live.failed(error))]

    def examine(self, lives: Callable[[Live], bool]) -> list[Prepared]:
        """Look at the prompts that wait for it and still `lives`, but not at so many that others wait long."""
        done: list[Prepared] = []
        tokens = 0
        until = time.monotonic() + _PASS_S
        while self._to_examine:
            live = self._to_examine[0]
            if lives(live):
                length = len(live.request.prompt_token_ids)
                if tokens and (tokens + length > _PASS_TOKENS or time.monotonic() > until):
                    self._wake()
                    break
                tokens += length
                done.append(self._examine(live))
            self._to_examine.popleft()
        return done

    def close(self) -> None:
        """Let go of the model and of all requests."""
        if self._compiler is not None:
            self._compiler.close()
        self._model = None
        self._to_examine.clear()

    def _pass_or_go_on(self, live: Live) -> list[Prepared]:
        if not prompt_forward.needed(live.request):
            return [_ready(live)]
        self._to_examine.append(live)
        return []

    def _examine(self, live: Live) -> Prepared:
        try:
            found = prompt_forward.prompt_pass(self._model, live.request)
            live.prompt_logprobs = found.prompt_logprobs
            if found.embedding is not None:
                return live, live.end("stop", embedding=found.embedding)
            return _ready(live)
        except Exception as error:
            return live, live.failed(error)


def _ready(live: Live) -> Prepared:
    """A request for the batcher, if there is anything to sample."""
    if not live.request.max_tokens:
        return live, live.end("length")
    if live.rules is not None and live.rules.constraint is not None and live.rules.constraint.ended:
        return live, live.end("stop")
    return live, None
