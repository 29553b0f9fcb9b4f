"""Engine for decisions: a language model over the tiny tokenizer's tokens, whose probabilities are known."""

from __future__ import annotations

import asyncio
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from openai_bls.core.engine_types import GenerationRequest, Logprobs, TokenDelta
from tests.unit.api.http_support import asked
from tests.unit.core_support import VOCAB_SIZE, Bench, token_ids

PATH = "/v1/decisions"


def next_logprobs(before: Sequence[int]) -> list[float]:
    """Log-probability of each token after others: a function of the last ones, far from even."""
    return _row(tuple(before[-5:]))


@functools.lru_cache(maxsize=4096)
def _row(last: tuple[int, ...]) -> list[float]:
    seed = zlib.crc32(repr(last).encode())
    weights = [float((seed * (token_id + 7) * 2654435761 >> 7) % 9973 + 1) ** 2 for token_id in range(VOCAB_SIZE)]
    total = math.fsum(weights)
    return [math.log(weight / total) for weight in weights]


def logprob(prompt: Sequence[int], text: str) -> float:
    """Log-probability of a text after a prompt, asked for token by token."""
    before, total = list(prompt), 0.0
    for token_id in token_ids(text):
        total += next_logprobs(before)[token_id]
        before.append(token_id)
    return total


def sampled(request: GenerationRequest) -> TokenDelta:
    """The one token of a request, as an engine samples it."""
    known = next_logprobs(request.prompt_token_ids)
    scores = list(known)
    for token_id, bias in request.sampling.logit_bias.items():
        scores[token_id] += bias
    best = max(range(VOCAB_SIZE), key=scores.__getitem__)
    top = sorted(range(VOCAB_SIZE), key=lambda one: -known[one])[: request.logprobs or 0]
    logprobs = Logprobs([known[best]], [top], [[known[one] for one in top]])
    return TokenDelta(request.request_id, [best], "length", logprobs=logprobs, cached_tokens=3)


def certain(request: GenerationRequest, token_id: int) -> TokenDelta:
    """One and the same token, whatever is asked for."""
    return TokenDelta(request.request_id, [token_id], "length", logprobs=Logprobs([0.0], [[]], [[]]))


class Engine:
    """The engine of a bench, which answers in the turn after it was asked."""

    def __init__(self, bench: Bench, answer: Callable[[GenerationRequest], TokenDelta] = sampled) -> None:
        self.most = 0
        """Most requests that it had at a time."""
        self._running = 0
        self._submit = bench.engine.submit
        self._answer = answer
        bench.engine.submit = self.submit  # type: ignore[method-assign]

    def submit(self, request: GenerationRequest, listener: Callable[[TokenDelta], None]) -> None:
        self._submit(request, listener)
        self._running += 1
        self.most = max(self.most, self._running)
        asyncio.get_running_loop().call_soon(self._end, request, listener)

    def _end(self, request: GenerationRequest, listener: Callable[[TokenDelta], None]) -> None:
        self._running -= 1
        listener(self._answer(request))


def choice(*values: str | bool, **more: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which?", "choices": [{"value": value} for value in values], **more}


def decided(bench: Bench, *questions: dict[str, Any], **body: Any) -> Any:
    answered = asked(bench, PATH, {"input": "hello", "questions": [*questions], **body})
    assert answered.status == 200, answered.body
    return answered.json()
