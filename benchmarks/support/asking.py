"""Requests to an engine in this process, and what came of each."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from openai_bls.core.engine import Engine
from openai_bls.core.engine_types import GenerationRequest, Logprobs, PromptLogprobs, SamplingParams, TokenDelta

GREEDY = SamplingParams(temperature=0)
LIMIT_S = 120.0
_GIVE_UP_S = 30.0


def random_ids(numbers: random.Random, count: int) -> list[int]:
    """Token ids that every vocabulary has."""
    return [numbers.randrange(1000) for _ in range(count)]


def greedy(prompt: list[int], tokens: int) -> GenerationRequest:
    """A request that no end token ends, under whatever id it is submitted with."""
    return GenerationRequest(request_id=0, prompt_token_ids=prompt, max_tokens=tokens, sampling=GREEDY)


@dataclass
class Answer:
    """All that came for one request."""

    asked: float
    """When it was submitted, by `time.perf_counter`, as all times here."""
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each token came."""
    logprobs: Logprobs = field(default_factory=lambda: Logprobs([], [], []))
    """Of all tokens, if they were asked for."""
    prompt_logprobs: PromptLogprobs | None = None
    cached_tokens: int = 0
    embedding: list[float] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    reason: str | None = None
    """The finish_reason."""
    stop_token_id: int | None = None
    error: str | None = None
    ended: float = 0.0

    def take(self, delta: TokenDelta, now: float) -> None:
        """Add what a step brought."""
        self.tokens.extend(delta.token_ids)
        self.times.extend([now] * len(delta.token_ids))
        if delta.logprobs is not None:
            self.logprobs.token_logprobs.extend(delta.logprobs.token_logprobs)
            self.logprobs.top_token_ids.extend(delta.logprobs.top_token_ids)
            self.logprobs.top_logprobs.extend(delta.logprobs.top_logprobs)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        self.cached_tokens += delta.cached_tokens
        self.embedding, self.kv_transfer_params = delta.embedding, delta.kv_transfer_params
        self.num_draft_tokens, self.num_accepted_tokens = delta.num_draft_tokens, delta.num_accepted_tokens
        self.reason, self.stop_token_id, self.error = delta.finish_reason, delta.stop_token_id, delta.error
        self.ended = now


class Asker:
    """Submits requests and waits for their ends. Give `on_step` to an engine, then set `engine`."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Answer, GenerationRequest]] = deque()
        self._live: dict[int, Answer] = {}
        self._next_id = 0

    def on_step(self, deltas: Sequence[TokenDelta]) -> None:
        """The engine's listener."""
        now = time.perf_counter()
        with self._changed:
            for delta in deltas:
                answer = self._live.get(delta.request_id)
                if answer is None:
                    continue
                answer.take(delta, now)
                if delta.finish_reason is not None:
                    del self._live[delta.request_id]
                    self._submit_next()
            if not self._live:
                self._changed.notify_all()

    def _submit_next(self) -> None:
        if self._waiting:
            assert self.engine is not None
            answer, request = self._waiting.popleft()
            self._live[request.request_id] = answer
            answer.asked = time.perf_counter()
            self.engine.submit(request)

    def submit(self, request: GenerationRequest) -> Answer:
        """Submit a request under an id of its own now; the answer fills while others run."""
        assert self.engine is not None
        with self._changed:
            self._next_id += 1
            answer = self._live[self._next_id] = Answer(time.perf_counter())
            self.engine.submit(msgspec.structs.replace(request, request_id=self._next_id))
        return answer

    def wait(self, limit_s: float = LIMIT_S) -> None:
        """Wait for all that was submitted.

        Raises:
            TimeoutError: some had not ended after `limit_s`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._live, limit_s):
                raise TimeoutError(f"{len(self._live)} requests had no end after {limit_s:.0f} s")

    def ask(
        self, requests: Sequence[GenerationRequest], limit_s: float = LIMIT_S, at_once: int | None = None
    ) -> list[Answer]:
        """Submit requests under ids of their own, and wait; the answers come in the requests' order.

        Args:
            requests: to submit.
            limit_s: seconds for all of them.
            at_once: requests in progress at a time, each that ends being followed by another; None is all.

        Raises:
            TimeoutError: some had not ended after `limit_s`; they are cancelled.
        """
        assert self.engine is not None
        answers = [Answer(time.perf_counter()) for _ in requests]
        with self._changed:
            for answer, request in zip(answers, requests, strict=True):
                self._next_id += 1
                self._waiting.append((answer, msgspec.structs.replace(request, request_id=self._next_id)))
            for _ in range(at_once or len(requests)):
                self._submit_next()
            in_time = self._changed.wait_for(lambda: not self._live, limit_s)
            self._waiting.clear()
            late = list(self._live)
        if not in_time:
            for request_id in late:
                self.engine.cancel(request_id)
            with self._changed:
                self._changed.wait_for(lambda: not self._live, _GIVE_UP_S)
                self._live.clear()
            raise TimeoutError(f"{len(late)} of {len(requests)} requests had no end after {limit_s:.0f} s")
        return answers


def answered(
    asker: Asker, requests: Sequence[GenerationRequest], limit_s: float = LIMIT_S, at_once: int | None = None
) -> list[Answer]:
    """As `Asker.ask`.

    Raises:
        RuntimeError: one ended with an error.
    """
    answers = asker.ask(requests, limit_s, at_once)
    if errors := [answer.error for answer in answers if answer.error]:
        raise RuntimeError(errors[0])
    return answers
