"""Token deltas of one request from vLLM's outputs.

vLLM counts `max_tokens`, holds back stop tokens until `min_tokens` and ends at a stop token, which is the last of
`new_token_ids`. Stop words are matched here: the caller aborts the request that one ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openai_bls.core.engine_types import GenerationRequest, Logprobs, PromptLogprobs, TokenDelta
from openai_bls.core.logprobs import packed
from openai_bls.engines.capabilities import ENGINE_FAILED
from openai_bls.engines.not_finite import NotFiniteError, require_numbers
from openai_bls.engines.output_end import End, OutputEnd
from openai_bls_vllm.grammars.grammar_progress import Progress
from openai_bls_vllm.interface import Output
from openai_bls_vllm.pooling import numbers

GRAMMAR_REFUSED = "The engine vllm cannot compile the grammar: simplify it."
"""Message of such a request to the client."""


class Cursor:
    """One request's place in its output."""

    __slots__ = ("_output_end", "begun", "plain", "progress", "request")

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        """The request, as it came."""
        self._output_end = OutputEnd(request)
        """Told of no tokens while `plain`: vLLM counts them."""
        self.progress: Progress | None = None
        """Position in the request's grammar, if it has one."""
        self.plain = False
        """True once an output without a finish reason is its tokens and nothing else."""
        self.begun = False
        """A delta was given."""

    def advance(self, output: Output) -> TokenDelta | None:
        """Delta of an output; None if it holds nothing. Not called after a delta with a finish reason.

        Raises:
            GrammarError: the output does not follow the request's grammar.
            NotFiniteError: the model has computed NaN for it, as far as vLLM tells.
        """
        if nans(output):
            raise NotFiniteError
        request = self.request
        if request.pooling is not None:
            return self._pooled(output)
        new = output.new_token_ids
        reason = output.finish_reason
        if not request.max_tokens:
            return self._prompt_only(output)
        end = self._end(output, None if reason is None else str(reason))
        if end is None and not new:
            return None
        kept = list(new) if end is None else list(new[: end.delivered])
        first = not self.begun
        self.begun = True
        self.plain = not self._output_end.has_words and request.logprobs is None and self.progress is None
        if end is not None and end.reason == "error":
            return self._failure(first=first)
        drafted, accepted = (0, 0) if end is None else drafts(output)
        return TokenDelta(
            request.request_id,
            kept,
            None if end is None else end.reason,
            None if end is None else end.stop_token_id,
            logprobs=sampled_logprobs(output.new_logprobs, len(kept), request.logprobs)
            if kept and request.logprobs is not None
            else None,
            prompt_logprobs=self._prompt_logprobs(output) if first else None,
            cached_tokens=cached_tokens(output) if first else 0,
            queue_s=queue_seconds(output) if first else None,
            kv_transfer_params=None if end is None else output.kv_transfer_params,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
        )

    def _pooled(self, output: Output) -> TokenDelta | None:
        number, reason = self.request.request_id, output.finish_reason
        if reason is None:
            return None
        if str(reason) != "stop" or output.pooling_output is None:
            return TokenDelta(number, [], "error", error=ENGINE_FAILED)
        return TokenDelta(number, [], "stop", embedding=numbers(output.pooling_output), queue_s=queue_seconds(output))

    def _failure(self, *, first: bool) -> TokenDelta:
        """Last delta of a request that vLLM has given up."""
        number = self.request.request_id
        if first and self.request.grammar is not None:
            # Before the first token it can only be the grammar, which does not compile.
            return TokenDelta(number, [], "error", error=GRAMMAR_REFUSED, invalid=True)
        return TokenDelta(number, [], "error", error=ENGINE_FAILED)

    def _prompt_only(self, output: Output) -> TokenDelta | None:
        """Delta of a request that generates nothing: the token that vLLM samples all the same is dropped."""
        reason = output.finish_reason
        if reason is None and not output.new_token_ids:
            return None
        self.begun = True
        if reason is not None and str(reason) not in ("length", "stop"):
            return TokenDelta(self.request.request_id, [], "error", error=ENGINE_FAILED)
        return TokenDelta(
            self.request.request_id,
            [],
            "length",
            prompt_logprobs=self._prompt_logprobs(output),
            cached_tokens=cached_tokens(output),
            queue_s=queue_seconds(output),
            kv_transfer_params=output.kv_transfer_params,
        )

    def _prompt_logprobs(self, output: Output) -> PromptLogprobs | None:
        if self.request.prompt_logprobs is None:
            return None
        return prompt_logprobs(output.new_prompt_logprobs_tensors, self.request.prompt_logprobs)

    def _end(self, output: Output, reason: str | None) -> End | None:
        """End of the sequence with, or among, its new tokens; None if it goes on."""
        new = output.new_token_ids
        # At the end of a grammar vLLM samples the tokenizer's end token, whatever the request's are.
        ends = reason == "stop" and bool(new) and (self._output_end.is_stop(new[-1]) or output.stop_reason == new[-1])
        text = new[:-1] if ends else new
        count = self._complete(text)
        if count is not None:
            return End(count, "stop")
        match reason:
            case None:
                return None
            case "stop":
                if self.progress is not None:
                    self.progress.require_end()
                return End(len(text), "stop", new[-1] if ends and self._output_end.is_stop(new[-1]) else None)
            case "length":
                return End(len(new), "length")
        # An abort of a request that is still live is vLLM's own.
        return End(len(new), "error")

    def _complete(self, text: Sequence[int]) -> int | None:
        """How many of some tokens complete a stop word or the grammar; None if they complete neither.

        Raises:
            GrammarError: the grammar forbids one of them.
        """
        end = self._output_end.advance(text)
        if end is not None and end.reason == "stop":
            count = end.delivered
            return count if self.progress is None else self.progress.advance(text[:count]) or count
        return None if self.progress is None else self.progress.advance(text)


def sampled_logprobs(lists: Any, count: int, k: int | None) -> Logprobs:
    """Log-probabilities of the first `count` tokens of an output, with the `k` likeliest of each place.

    Raises:
        NotFiniteError: a token's own is NaN.
        ValueError: vLLM sent fewer places.
    """
    ids, values = lists[0], lists[1]
    if len(values) < count:
        raise ValueError(f"the output has log-probabilities of {len(values)} of {count} tokens")
    # Rows [token itself, likeliest, second, ...], as wide as the widest of their batch.
    top = slice(1, (k or 0) + 1)
    own = [float(value) for value in values[:count, 0].tolist()]
    require_numbers(own)
    return Logprobs(own, ids[:count, top].tolist(), values[:count, top].tolist())


def prompt_logprobs(tensors: Any, k: int) -> PromptLogprobs:
    """Log-probabilities of a prompt from its second token on; a prompt of one token has none.

    Raises:
        NotFiniteError: a token's own is NaN.
    """
    if tensors is None:
        return PromptLogprobs(k, [])
    ids, values = np.asarray(tensors[0]), np.asarray(tensors[1])
    own = values[:, 0]
    # NaN is the largest of what it is among.
    require_numbers([own.max(initial=-np.inf)])
    return packed(own, ids[:, 1 : k + 1], values[:, 1 : k + 1])


def nans(output: Any) -> int:
    """NaN among the logits of a request's step, where vLLM counts them (`startup.environment.count_nans`)."""
    return getattr(output, "num_nans_in_logits", 0) or 0


def cached_tokens(output: Any) -> int:
    """Prompt tokens found in the KV cache; versions differ in where an output has them."""
    stats = getattr(output, "prefill_stats", None)
    found = getattr(output, "num_cached_tokens", 0) if stats is None else stats.num_cached_tokens
    return max(0, found or 0)


def drafts(output: Any) -> tuple[int, int]:
    """Tokens that were drafted for a request and those that were accepted, with its last output; 0 where vLLM does not
    tell, as versions before 0.29."""
    metrics = getattr(output, "spec_decode_metrics", None)
    if metrics is None:
        return 0, 0
    # Of each number of accepted tokens, the steps that had it.
    accepted = sum(number * steps for number, steps in enumerate(metrics.histogram))
    return max(accepted, metrics.num_draft_tokens), accepted


_QUEUED, _SCHEDULED = 1, 2
"""`EngineCoreEventType`."""


def queue_seconds(output: Any) -> float | None:
    """Seconds from the arrival in vLLM's queue to the first step; None if vLLM does not tell."""
    found: dict[int, float] = {}
    for event in getattr(output, "events", None) or ():
        found.setdefault(int(event.type), event.timestamp)
    if _QUEUED not in found or _SCHEDULED not in found:
        return None
    return max(0.0, found[_SCHEDULED] - found[_QUEUED])
