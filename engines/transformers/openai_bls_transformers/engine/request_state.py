"""State of a request in the embedded engine: from the outputs of its steps to the deltas of its client."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any

from openai_bls.core.engine_types import EngineFinishReason, GenerationRequest, Logprobs, PromptLogprobs, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.engines.grammars.matcher import Constraint
from openai_bls.engines.not_finite import NOT_FINITE, NotFiniteError, not_finite_end
from openai_bls.engines.output_end import End, OutputEnd
from openai_bls_transformers.model.image_inputs import PromptImages
from openai_bls_transformers.model.lora import LoadedAdapter
from openai_bls_transformers.runners.runner import Sampling
from openai_bls_transformers.sampling.logits_processors import HostLogitsProcessors
from openai_bls_transformers.speculation.drafter import Drafter

logger = logging.getLogger(__name__)


class RequestState:
    """A request that has not ended."""

    __slots__ = (
        "_output_end",
        "adapter",
        "batched",
        "cursor",
        "drafter",
        "images",
        "key",
        "model_name",
        "processors",
        "prompt_logprobs",
        "received_at",
        "request",
    )

    def __init__(
        self, key: str, request: GenerationRequest, model_name: str, adapter: LoadedAdapter | None = None
    ) -> None:
        """Take a request.

        Args:
            key: key of the sequence in the batcher.
            request: the request.
            model_name: name of the served model, for messages.
            adapter: adapter that it is for; None is the base model.
        """
        self.key = key
        self.model_name = model_name
        self.request = request
        self.adapter = adapter
        self.processors: HostLogitsProcessors | None = None
        self.drafter: Drafter | None = None
        self.images: PromptImages | None = None
        """Images of the prompt, which the batcher gets once they are prepared."""
        self.prompt_logprobs: PromptLogprobs | None = None
        """Log-probabilities of the prompt, for the first delta."""
        self.received_at = time.monotonic()
        self.batched = False
        """The batcher has it."""
        self.cursor = 0
        """Tokens seen so far."""
        self._output_end = OutputEnd(request)

    @property
    def lora_slot(self) -> int:
        """Slot of its adapter; 0 is the base model."""
        return 0 if self.adapter is None else self.adapter.slot

    def sampling(self, vocab_size: int) -> Sampling:
        """Sampling parameters of its sequence."""
        params = self.request.sampling
        return Sampling(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k if params.top_k < vocab_size else 0,
            min_p=params.min_p,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            processors=self.processors,
            lora_slot=self.lora_slot,
            drafter=self.drafter,
        )

    def end(self, reason: EngineFinishReason, **more: Any) -> TokenDelta:
        """The one delta of a request for which nothing is sampled."""
        return TokenDelta(self.request.request_id, [], reason, prompt_logprobs=self.prompt_logprobs, **more)

    def failed(self, error: Exception) -> TokenDelta:
        """The last delta of a request that `error` has ended: one of a grammar is the request's own fault."""
        if isinstance(error, GrammarError):
            return TokenDelta(self.request.request_id, [], "error", error=str(error), invalid=True)
        if isinstance(error, NotFiniteError):
            return not_finite_end(self.request, self.model_name)
        logger.error("a request failed", exc_info=error)
        return TokenDelta(self.request.request_id, [], "error", error=ENGINE_FAILED)

    def accept(self, output: Any) -> Constraint | None:
        """Feed the new tokens of `output`, a `continuous_batching.SequenceOutput`, to the request's grammar.

        Returns:
            The constraint if its next bitmask is needed; None without one, after a stop token, or on failure.
        """
        processors = self.processors
        if processors is None or processors.constraint is None or processors.failure is not None:
            return None
        if output.error is not None or output.generated_tokens[-1:] == [NOT_FINITE]:
            return None
        try:
            for token_id in output.generated_tokens[self.cursor :]:
                if self._output_end.is_stop(token_id):
                    return None
                if not processors.constraint.accept(token_id):
                    raise RuntimeError(f"a grammar refuses token {token_id}, which it had not forbidden")
        except Exception as error:  # of a grammar library
            processors.failure = error
            return None
        return processors.constraint

    def advance(self, output: Any) -> TokenDelta | None:
        """The delta of `output`, which `accept` has seen; None if it holds nothing new.

        Any failure ends this request alone.
        """
        delta: TokenDelta | None
        if output.error is not None:
            delta = TokenDelta(self.request.request_id, [], "error", error=ENGINE_FAILED)
        else:
            try:
                delta = self._advance(output)
            except Exception as error:  # of a grammar library, above all
                delta = self.failed(error)
        if delta is not None and delta.finish_reason is not None and self.processors is not None:
            self.processors.ended = True
        return delta

    def _advance(self, output: Any) -> TokenDelta | None:
        request, processors = self.request, self.processors
        if processors is not None and processors.failure is not None:
            raise processors.failure
        first = self.cursor
        new: list[int] = output.generated_tokens[first:]
        if not new:
            return None
        if new[-1] == NOT_FINITE:
            raise NotFiniteError
        self.cursor += len(new)
        end = self._end(new)
        delivered = new if end is None else new[: end.delivered]
        scheduled_at = None if first else getattr(output, "scheduled_at", None)
        logprobs = None
        if processors is not None and request.logprobs is not None:
            logprobs = self._logprobs(processors, len(request.prompt_token_ids) + first, len(new), len(delivered))
        return TokenDelta(
            request.request_id,
            delivered,
            None if end is None else end.reason,
            None if end is None else end.stop_token_id,
            logprobs=logprobs,
            prompt_logprobs=None if first else self.prompt_logprobs,
            cached_tokens=0 if first else getattr(output, "cached_tokens", 0),
            queue_s=None if scheduled_at is None else scheduled_at - self.received_at,
            predicted_tokens=0 if self.drafter is None else self.drafter.observe(delivered),
        )

    def _end(self, new: Sequence[int]) -> End | None:
        """End of the sequence with, or among, its new tokens; None if it goes on."""
        end = self._output_end.advance(new)
        constraint = None if self.processors is None else self.processors.constraint
        if constraint is not None and constraint.ended and (end is None or end.reason == "length"):
            return End(len(new), "stop")
        return end

    def _logprobs(self, processors: HostLogitsProcessors, place: int, sampled: int, delivered: int) -> Logprobs | None:
        """Log-probabilities of the delivered ones of the tokens sampled from index `place` of the sequence on."""
        found = [processors.results.pop(place + i) for i in range(sampled)][:delivered]
        if not found:
            return None
        rows = [step.row(index, self.request.logprobs or 0) for step, index in found]
        return Logprobs([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
