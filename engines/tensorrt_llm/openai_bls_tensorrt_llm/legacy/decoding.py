"""Decoder of official output tensors to the token deltas of one request.

Of a stream, `output_ids` holds the new tokens only but `output_log_probs` those of all so far; the end token is in
neither, the tokens of a matched stop word are in both; the last response may bring no tokens; why it ended is not said.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from openai_bls.core.engine_types import EngineFinishReason, GenerationRequest, Logprobs, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls_tensorrt_llm.legacy.encoding import end_id

logger = logging.getLogger(__name__)

UNAVAILABLE = "The engine is not available."

# Messages of Triton about a model that is not (or no longer) loaded, and of a full queue.
_UNAVAILABLE = re.compile(
    r"unknown model|no available versions|is not ready|not found, |server is (stopping|exiting|not ready)", re.I
)
_FULL = re.compile(r"queue size", re.I)
# Messages of the executor on requests that do not fit; the client gets this part alone, since the rest has paths in it.
_INVALID = re.compile(
    r"(Prompt|Input|Encoder|Total|Requested)[\w ]*(length|tokens?)\b[^\n/]*? exceeds?[^\n/]*?\(\d+\)", re.I
)


class Decoder:
    """Makes deltas of one request's responses, which come in order.

    Args:
        request: request that was sent.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._ends = frozenset(request.stop_token_ids[1:])
        self._longest = max(map(len, request.stop_words), default=0)
        self._tail: list[int] = []
        self._count = 0
        self.ended = False
        """True once the last delta is made; further responses bring nothing."""

    def take(
        self, token_ids: Sequence[int], log_probs: Sequence[float] | None = None, *, final: bool
    ) -> TokenDelta | None:
        """Delta of one response; None if it has nothing new.

        Args:
            token_ids: the new ones.
            log_probs: log-probabilities of all tokens so far; None if the response has none.
            final: whether no further response comes.
        """
        if self.ended:
            return None
        request_id = self._request.request_id
        tokens, stopped_by = self._up_to_an_end_token(token_ids)
        logprobs = None
        if tokens and self._request.logprobs is not None:
            values = None if log_probs is None else list(log_probs[self._count : self._count + len(tokens)])
            if values is None or len(values) < len(tokens):
                logger.error("the engine sent %d tokens without their log-probabilities", len(tokens))
                self.ended = True
                return TokenDelta(request_id, [], "error", error=ENGINE_FAILED)
            nothing: list[list[int]] = [[] for _ in tokens]
            logprobs = Logprobs(values, nothing, [[] for _ in tokens])
        self._count += len(tokens)
        if self._longest:
            self._tail = [*self._tail, *tokens][-self._longest :]
        if stopped_by is None and not final:
            return TokenDelta(request_id, tokens, logprobs=logprobs) if tokens else None
        self.ended = True
        reason, ended_by = ("stop", stopped_by) if stopped_by is not None else self._end()
        return TokenDelta(request_id, tokens, reason, ended_by, logprobs=logprobs)

    def fail(self, message: str) -> TokenDelta | None:
        """Last delta of a request that Triton or the backend answers with an error; None if it has ended already."""
        if self.ended:
            return None
        self.ended = True
        return failure(self._request.request_id, message)

    def _up_to_an_end_token(self, token_ids: Sequence[int]) -> tuple[list[int], int | None]:
        """The tokens before the first of the end tokens that went as stop words, and that one."""
        if self._ends:
            for at, token_id in enumerate(token_ids):
                if token_id in self._ends:
                    return list(token_ids[:at]), token_id
        return list(token_ids), None

    def _end(self) -> tuple[EngineFinishReason, int | None]:
        """Finish reason of the sequence, and the end token that was sampled last, if any."""
        request = self._request
        if any(self._tail[-len(word) :] == list(word) for word in request.stop_words):
            return "stop", None
        if self._count >= request.max_tokens:
            return "length", None
        end = end_id(request)
        if end is None and request.grammar is None:
            # Nothing else can have ended it.
            return "length", None
        return "stop", end


def failure(request_id: int, message: str) -> TokenDelta:
    """The last delta of a request that Triton or the backend answers with the error `message`."""
    if _UNAVAILABLE.search(message):
        return TokenDelta(request_id, [], "cancelled", error=UNAVAILABLE)
    if _FULL.search(message):
        return TokenDelta(request_id, [], "cancelled", error="The engine's queue is full; try again later.")
    invalid = _INVALID.search(message)
    if invalid:
        return TokenDelta(request_id, [], "error", error=f"{invalid[0]}.", invalid=True)
    logger.error("the engine failed on a request: %s", message)
    return TokenDelta(request_id, [], "error", error=ENGINE_FAILED)
