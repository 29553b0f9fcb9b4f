"""One request in the llama.cpp engine: from sampled tokens to the deltas of its client."""

from __future__ import annotations

import logging
import time

from openai_bls.core.engine_types import GenerationRequest, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.grammars.errors import GrammarError
from openai_bls.engines.grammars.matcher import Constraint
from openai_bls.engines.not_finite import NotFiniteError, not_finite_end
from openai_bls.engines.output_end import OutputEnd
from openai_bls_llama_cpp.sampling import Floats, TokenSampler

logger = logging.getLogger(__name__)


class Sequence:
    """A request that has not ended.

    Args:
        request: the request.
        key: name of the request for the compiler of grammars.
        model_name: name of the served model, for messages.
    """

    def __init__(self, request: GenerationRequest, key: str, model_name: str) -> None:
        self.request = request
        self.key = key
        self.token_ids = list(request.prompt_token_ids)
        """Prompt and output."""
        self.constraint: Constraint | None = None
        self.place: int | None = None
        """Place in llama.cpp's memory; None while it waits."""
        self.computed = 0
        """Tokens that are in llama.cpp's memory."""
        self._model_name = model_name
        self._sampler = TokenSampler(request)
        self._output_end = OutputEnd(request)
        self._cached = 0
        self._received_at = time.monotonic()
        self._queue_s: float | None = None

    @property
    def generated(self) -> int:
        """Tokens of the output."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one is sampled."""
        return len(self.token_ids) - self.computed

    def begin(self, place: int, computed: int) -> None:
        """Start in a place that holds the first tokens already."""
        self.place, self.computed = place, computed
        if self._queue_s is None:
            self._queue_s, self._cached = time.monotonic() - self._received_at, computed

    def sample(self, logits: Floats) -> TokenDelta:
        """Sample a token; any failure ends this request alone.

        Args:
            logits: shape [vocabulary]; may be changed.
        """
        try:
            return self._sample(logits)
        except GrammarError as error:
            return TokenDelta(self.request.request_id, [], "error", error=str(error), invalid=True)
        except NotFiniteError:
            return not_finite_end(self.request, self._model_name)
        except Exception:  # of a grammar library, above all
            logger.exception("a request failed")
            return TokenDelta(self.request.request_id, [], "error", error=ENGINE_FAILED)

    def _sample(self, logits: Floats) -> TokenDelta:
        request = self.request
        token_id, logprobs = self._sampler.choose(logits, self.token_ids, self.constraint)
        is_first = not self.generated
        self.token_ids.append(token_id)
        is_stop = self._output_end.is_stop(token_id)
        completes_grammar = not is_stop and self._completes_grammar(token_id)
        end = self._output_end.advance([token_id])
        return TokenDelta(
            request.request_id,
            [] if is_stop else [token_id],
            "stop" if completes_grammar else None if end is None else end.reason,
            token_id if is_stop else None,
            logprobs=None if is_stop else logprobs,
            cached_tokens=self._cached if is_first else 0,
            queue_s=self._queue_s if is_first else None,
        )

    def _completes_grammar(self, token_id: int) -> bool:
        """Take in a token that is no stop token; True if the grammar ends with it."""
        constraint = self.constraint
        if constraint is None:
            return False
        if not constraint.accept(token_id):
            raise RuntimeError(f"a grammar refuses token {token_id}, which it had not forbidden")
        return constraint.ended
