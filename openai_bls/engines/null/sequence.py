"""A request in the null engine, with its whole output, which is worked out when it comes in."""

from __future__ import annotations

import time
from collections.abc import Sequence as TokenIds

import msgspec
import numpy as np

from openai_bls.core.engine_types import (
    EngineFinishReason,
    EngineInfo,
    GenerationRequest,
    Logprobs,
    PromptLogprobs,
    TokenDelta,
)
from openai_bls.core.logprobs import packed
from openai_bls.engines.null.record import NullSettings
from openai_bls.engines.output_end import OutputEnd

_DEFAULT_TOKENS = 64  # ids that an engine without `token_ids` repeats


class Output(msgspec.Struct):
    """Answer to a request."""

    token_ids: list[int]
    finish_reason: EngineFinishReason = "length"
    stop_token_id: int | None = None
    first_token_delay_ms: float = 0.0
    tokens_per_step: int = 1

    def go_on_to(self, count: int, request: GenerationRequest, info: EngineInfo) -> None:
        """Put another token where one of the first `count` would be a stop token, or missing."""
        stops = set(request.stop_token_ids)
        other = next((i for i in range(info.vocab_size) if i not in stops), 0)
        tokens = self.token_ids
        tokens.extend([other] * (count - len(tokens)))
        tokens[:count] = [other if token_id in stops else token_id for token_id in tokens[:count]]
        if len(tokens) == request.max_tokens:
            self.finish_reason, self.stop_token_id = "length", None

    def apply_stops(self, request: GenerationRequest) -> None:
        """End the output at the request's first stop token or stop word."""
        end = OutputEnd(request).advance(self.token_ids)
        if end is not None and end.reason == "stop":
            self.token_ids = self.token_ids[: end.delivered]
            self.finish_reason, self.stop_token_id = end.reason, end.stop_token_id


def ended(token_ids: list[int], request: GenerationRequest, info: EngineInfo) -> Output:
    """The output of these tokens and an end token, as far as `max_tokens` lets it."""
    if len(token_ids) < request.max_tokens:
        return Output(token_ids, "stop", next(iter(info.eos_token_ids), None))
    return Output(token_ids[: request.max_tokens])


def output_of(request: GenerationRequest, settings: NullSettings, info: EngineInfo) -> Output:
    """The output of an engine without a script."""
    shift = 0 if request.lora_name is None else 1
    if settings.echo:
        prompt = request.prompt_token_ids
        output = ended([*prompt[shift:], *prompt[:shift]], request, info)
    else:
        cycle = list(settings.token_ids) or _default_cycle(info)
        tokens = (cycle * ((request.max_tokens + shift) // len(cycle) + 1))[shift:][: request.max_tokens]
        output = Output(tokens)
    output.first_token_delay_ms = settings.first_token_delay_ms
    if request.min_tokens:
        output.go_on_to(request.min_tokens, request, info)
    output.apply_stops(request)
    return output


class Sequence:
    """A live request: a step only has to walk along its output."""

    __slots__ = (
        "asked",
        "fails",
        "finish_reason",
        "not_before",
        "position",
        "queue_s",
        "received_at",
        "request_id",
        "stop_token_id",
        "token_ids",
        "tokens_per_step",
    )

    def __init__(self, request: GenerationRequest, output: Output, info: EngineInfo, fail_on_token_id: int) -> None:
        self.request_id = request.request_id
        self.position = 0
        self.received_at = time.monotonic()
        self.queue_s = 0.0
        self.not_before = self.received_at + output.first_token_delay_ms / 1000
        self.fails = fail_on_token_id in request.prompt_token_ids
        wants_logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        self.asked = (request, info.vocab_size) if wants_logprobs else None
        """Request and vocabulary size, where deltas carry log-probabilities."""
        self.token_ids = output.token_ids
        self.finish_reason = output.finish_reason
        self.stop_token_id = output.stop_token_id
        self.tokens_per_step = output.tokens_per_step

    def detailed(self, delta: TokenDelta, position: int) -> TokenDelta:
        """`delta`, whose first token is at `position` of the output, with the log-probabilities that were asked for."""
        if self.asked is None:
            return delta
        request, vocab_size = self.asked
        logprobs = prompt_logprobs = None
        if request.logprobs is not None and delta.token_ids:
            logprobs = _logprobs(delta.token_ids, request.logprobs, vocab_size)
        if request.prompt_logprobs is not None and not position:
            prompt_logprobs = _prompt_logprobs(request.prompt_token_ids[1:], request.prompt_logprobs, vocab_size)
        return msgspec.structs.replace(delta, logprobs=logprobs, prompt_logprobs=prompt_logprobs)


def _default_cycle(info: EngineInfo) -> list[int]:
    """The first tokens of the vocabulary that do not end a sequence."""
    cycle = [i for i in range(min(info.vocab_size, _DEFAULT_TOKENS)) if i not in info.eos_token_ids]
    return cycle or [0]


def _logprobs(token_ids: TokenIds[int], count: int, vocab_size: int) -> Logprobs:
    count = min(count, vocab_size)
    return Logprobs(
        [0.0] * len(token_ids),
        [[(token_id + i) % vocab_size for i in range(count)] for token_id in token_ids],
        [[-float(i) for i in range(count)] for _ in token_ids],
    )


def _prompt_logprobs(token_ids: TokenIds[int], count: int, vocab_size: int) -> PromptLogprobs:
    """As `_logprobs` has them."""
    own, places = np.array(token_ids, np.int64), np.arange(min(count, vocab_size))
    top = (own[:, None] + places) % vocab_size
    return packed(np.zeros(len(own)), top, np.broadcast_to(-places, top.shape))
