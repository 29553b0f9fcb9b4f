"""Token deltas from the growing output of TensorRT-LLM's LLM API.

What `async for` gives is one object that changes. Its lists are cumulative, and each of these happens, by version, flow
and settings (`_handle_sequence` in executor/result.py):

- a step brings several tokens, or none, or only a finish reason, and several responses may be taken in at once;
- the end token is the last of `token_ids` (PyTorch), or never appears (TensorRT);
- a matched stop sequence is cut off again, so that the list is shorter than it was;
- `logprobs` has those of the newest response alone (TensorRT engines, 0.20), or of more tokens than there are;
- `finish_reason` stays None at the end.

So nothing is taken from the `*_diff` attributes: a cursor over the cumulative lists tells what is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai_bls.core.engine_types import GenerationRequest, Logprobs, TokenDelta
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.not_finite import require_numbers
from openai_bls.engines.output_end import End, OutputEnd
from openai_bls_tensorrt_llm.installed.interface import Completion

TIMED_OUT = "The engine gave the request up: it had taken too long."
"""Message of such a request to the client."""

_WHOLE = ("stop", "length")
"""Finish reasons of an output in which nothing is missing."""


class OutputError(Exception):
    """TensorRT-LLM's output lacks what was asked for; the message is for the log."""


class Cursor:
    """One request's place in its output.

    The token sequences of `stop_words` are matched here, since without a tokenizer the LLM API has no stops but single
    tokens; the caller aborts what goes on after the end.
    """

    __slots__ = (
        "_end_id",
        "_observed",
        "_output_end",
        "_places",
        "_request",
        "begun",
    )

    def __init__(self, request: GenerationRequest, end_id: int | None) -> None:
        """Args: end_id: `end_id` of the request in TensorRT-LLM; None if there is none."""
        self._request = request
        self._end_id = end_id
        self._output_end = OutputEnd(request)
        self._places: list[Any] = []
        """Log-probabilities of all tokens so far, if they were asked for."""
        self._observed = 0
        """Most tokens that any response has had."""
        self.begun = False
        """A delta was given."""

    @property
    def count(self) -> int:
        """Tokens delivered so far."""
        return self._output_end.count

    def observe(self, completion: Completion) -> None:
        """Take in a response's log-probabilities, which the next may replace: after each, if they were asked for.

        Args: completion: the output as the response left it.
        """
        shown = completion.logprobs or ()
        count = len(completion.token_ids)
        if len(shown) >= count:
            self._places.extend(shown[len(self._places) :])
        elif count > self._observed:
            # Fewer than tokens: of this response alone. Those of what was cut off again are left out.
            self._places.extend(shown)
        self._observed = max(self._observed, count)

    def advance(self, completion: Completion, *, finished: bool, cached_tokens: int = 0) -> TokenDelta | None:
        """Delta of what is new in `completion`; None if nothing is. Not called after a delta with a finish reason.

        Args:
            completion: the output as it is now.
            finished: True if the output will not change any more.
            cached_tokens: prompt tokens that the KV cache held already.

        Raises:
            OutputError: it is finished and log-probabilities that were asked for are not there.
            NotFiniteError: one of them is NaN.
        """
        request = self._request
        token_ids = completion.token_ids
        first = self.count
        last = min(len(token_ids), request.max_tokens)
        logprobs: Sequence[Any] = ()
        if request.logprobs is not None:
            logprobs = self._places
            if not finished or completion.finish_reason not in _WHOLE:
                # A token waits for its log-probability; one that was cut off has none.
                last = min(last, len(logprobs))
        # A list that got shorter has nothing new.
        new = list(token_ids[first:last]) if first < last else []
        end = self._output_end.advance(new)
        if end is None and finished:
            end = self._finished(completion, len(new))
        if end is not None:
            del new[end.delivered :]
        elif not new:
            return None
        delta = TokenDelta(
            request.request_id,
            new,
            None if end is None else end.reason,
            None if end is None else end.stop_token_id,
            None if end is None else end.error,
            logprobs=_logprobs(new, logprobs[first : first + len(new)], request.logprobs or 0)
            if logprobs and new
            else None,
            cached_tokens=0 if self.begun else cached_tokens,
        )
        if request.logprobs is not None and new and delta.logprobs is None:
            raise OutputError("the output has no log-probabilities, which were asked for")
        self.begun = True
        return delta

    def _finished(self, completion: Completion, count: int) -> End:
        """End of a finished output by TensorRT-LLM's own finish reason.

        Args:
            completion: the output.
            count: new tokens.
        """
        reason, cause = completion.finish_reason, completion.stop_reason
        if reason == "stop":
            # Without a cause it was the end token, of which TensorRT's output has no trace.
            return End(count, "stop", cause if isinstance(cause, int) else self._end_id)
        if reason == "length":
            return End(count, "length")
        if reason == "timeout":
            return End(count, "error", error=TIMED_OUT)
        if reason is None or reason == "cancelled":
            # Versions up to 0.16 have no name for a cancellation.
            return End(count, "cancelled")
        return End(count, "error", error=ENGINE_FAILED)


def _logprobs(token_ids: Sequence[int], places: Sequence[Any], count: int) -> Logprobs:
    """Log-probabilities of tokens as our messages have them.

    Args:
        token_ids: the tokens.
        places: log-probability of each token, or a mapping from token id to an object with `logprob`.
        count: likeliest tokens to tell.

    Raises:
        OutputError: a place is missing, or does not tell enough.
        NotFiniteError: a token's own is NaN.
    """
    if len(places) < len(token_ids):
        raise OutputError(f"the output has log-probabilities of {len(places)} of {len(token_ids)} tokens")
    own: list[float] = []
    ids: list[list[int]] = []
    values: list[list[float]] = []
    for token_id, place in zip(token_ids, places, strict=True):
        if not isinstance(place, Mapping):
            if count:
                raise OutputError("the output tells no likeliest tokens, which were asked for")
            own.append(float(place))
            ids.append([])
            values.append([])
            continue
        if token_id not in place:
            raise OutputError(f"the output tells no log-probability of token {token_id} itself")
        own.append(_value(place[token_id]))
        # Beside the likeliest there is the token itself, wherever it ranks.
        top = sorted(((-_value(entry), other) for other, entry in place.items()))[:count] if count else []
        ids.append([other for _, other in top])
        values.append([-value for value, _ in top])
    require_numbers(own)
    return Logprobs(own, ids, values)


def _value(entry: Any) -> float:
    return float(getattr(entry, "logprob", entry))
