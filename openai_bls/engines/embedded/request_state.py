"""A request in the embedded engine: what its steps' outputs come to for the one who asked."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from openai_bls.core.engine_types import EngineFinishReason, GenerationRequest, Logprobs, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.embedded.grammar_matcher import GrammarError
from openai_bls.engines.embedded.logits_processors import Rules

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """How a sequence ends."""

    count: int
    """New tokens that are still delivered."""
    reason: EngineFinishReason
    stop_token_id: int | None = None


class Live:
    """A request that has not ended."""

    __slots__ = ("_longest_word", "_stops", "_tail", "batched", "cursor", "key", "prompt_logprobs", "request", "rules")

    def __init__(self, key: str, request: GenerationRequest) -> None:
        """Args: key: of its sequence in the batcher."""
        self.key = key
        self.request = request
        self.rules: Rules | None = None
        self.prompt_logprobs: Logprobs | None = None
        """For the first delta."""
        self.batched = False
        """The batcher has it."""
        self.cursor = 0
        """Tokens seen so far."""
        self._stops = frozenset(request.stop_token_ids)
        self._longest_word = max((len(word) for word in request.stop_words), default=0)
        self._tail: list[int] = []
        """The last tokens, as many as a stop word can span."""

    def end(self, reason: EngineFinishReason, **more: Any) -> TokenDelta:
        """The one delta of a request for which nothing is sampled."""
        return TokenDelta(self.request.request_id, [], reason, prompt_logprobs=self.prompt_logprobs, **more)

    def failed(self, error: Exception) -> TokenDelta:
        """The last delta of a request that `error` has ended: one of a grammar is the request's own fault."""
        if isinstance(error, GrammarError):
            return TokenDelta(self.request.request_id, [], "error", error=str(error), invalid=True)
        logger.error("a request failed", exc_info=error)
        return TokenDelta(self.request.request_id, [], "error", error=ENGINE_FAILED)

    def advance(self, output: Any) -> TokenDelta | None:
        """What `output`, a `batching.SequenceOutput`, brought; None if nothing.

        Whatever goes wrong with it ends this request alone.
        """
        if output.error is not None:
            return TokenDelta(self.request.request_id, [], "error", error=ENGINE_FAILED)
        try:
            return self._advance(output)
        except Exception as error:  # of a grammar library, above all
            return self.failed(error)

    def _advance(self, output: Any) -> TokenDelta | None:
        request = self.request
        if self.rules is not None and self.rules.failure is not None:
            raise self.rules.failure
        first = self.cursor
        new: list[int] = output.generated_tokens[first:]
        if not new:
            return None
        self.cursor += len(new)
        end = self._end(new)
        delivered = new if end is None else new[: end.count]
        logprobs = None
        if self.rules is not None and request.logprobs is not None:
            logprobs = self._logprobs(len(request.prompt_token_ids) + first, len(new), len(delivered))
        return TokenDelta(
            request.request_id,
            delivered,
            None if end is None else end.reason,
            None if end is None else end.stop_token_id,
            logprobs=logprobs,
            prompt_logprobs=None if first else self.prompt_logprobs,
            cached_tokens=0 if first else getattr(output, "cached_tokens", 0),
        )

    def _end(self, new: Sequence[int]) -> _End | None:
        """Whether the sequence ends with, or among, its new tokens."""
        constraint = None if self.rules is None else self.rules.constraint
        if self._longest_word or constraint is not None:
            for count, token_id in enumerate(new, 1):
                if token_id in self._stops:
                    break
                if constraint is not None and not constraint.accept(token_id):
                    raise RuntimeError(f"a grammar refuses token {token_id}, which it had not forbidden")
                # Both are asked, as the tail has to go on.
                completed = self._longest_word and self._completes_word(token_id)
                enough = self.cursor - len(new) + count >= self.request.min_tokens
                if (completed and enough) or (constraint is not None and constraint.ended):
                    return _End(count, "stop")
        if new[-1] in self._stops:
            return _End(len(new) - 1, "stop", new[-1])
        if self.cursor >= self.request.max_tokens:
            return _End(len(new), "length")
        return None

    def _completes_word(self, token_id: int) -> bool:
        self._tail.append(token_id)
        del self._tail[: -self._longest_word]
        tail = tuple(self._tail)
        return any(tail[-len(word) :] == word for word in self.request.stop_words)

    def _logprobs(self, place: int, sampled: int, delivered: int) -> Logprobs | None:
        """Of the delivered ones of the tokens that were sampled for `place` and on, an index in the sequence."""
        assert self.rules is not None
        found = [self.rules.results.pop(place + i) for i in range(sampled)][:delivered]
        if not found:
            return None
        rows = [step.row(index, self.request.logprobs or 0) for step, index in found]
        return Logprobs([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
