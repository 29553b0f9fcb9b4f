"""Reads of next tokens: log-probabilities of the tokens that may follow some prompts, each by a request of one token.

The likeliest tokens come with the read of a prompt. A token that is not among them is read by having the engine sample
it, by a bias, which its log-probability is without. All of these find the prompt in the engine's prefix cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openai_bls.api.common.engine_work import EngineWork
from openai_bls.api.decisions.labels import NEVER, Tokens, prefixes
from openai_bls.core.engine_types import GenerationRequest, SamplingParams, TokenDelta
from openai_bls.core.media import MediaPrompt
from openai_bls.core.request import Deadline
from openai_bls.pipeline.admission.admission import Admission
from openai_bls.pipeline.admission.ticket import Ticket
from openai_bls.pipeline.models.registry import EngineClient

_FORCED = 100.0
"""Bias of a token that is to be sampled. One that another outdoes all the same has no probability that a float tells
from 0: less than e to the power of -100."""
_TOKENS_AT_ONCE = 1 << 18
"""Tokens of the prompts that the engine is handed at once: they are written in milliseconds."""
FIELDS = ("logprobs", "logit_bias")
"""What an engine must honour."""


@dataclass(frozen=True)
class Read:
    """A prompt, and the labels that may follow it."""

    prompt: list[int]
    labels: list[Tokens]
    media: MediaPrompt | None = None

    @functools.cached_property
    def steps(self) -> list[Tokens]:
        """Beginnings of the labels, each once, whose last tokens are to be read."""
        return list(dict.fromkeys(prefix for label in self.labels for prefix in prefixes(label)))


class _Place(NamedTuple):
    """A place whose next token is to be read."""

    asked: Read
    after: Tokens = ()
    """Tokens between the prompt and the place."""
    forced: int | None = None
    """The token; None reads the likeliest ones."""

    @property
    def length(self) -> int:
        """Tokens before the place."""
        return len(self.asked.prompt) + len(self.after)


class Reader:
    """Reads for one request.

    Args:
        engine: client of the engine.
        admission: admission to the engine.
        key: name of the request's API key.
        most: sequences that it asks places for at a time.
        likeliest: number of likeliest tokens that the engine tells.
        lora_name: adapter of the request.
        deadline: time by which the request must be answered; None if it has none.
    """

    def __init__(
        self,
        engine: EngineClient,
        admission: Admission,
        key: str,
        *,
        most: int,
        likeliest: int,
        lora_name: str | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._key = key
        self._most = most
        self._likeliest = likeliest
        self._lora_name = lora_name
        self._deadline = deadline
        self._first: Ticket | None = None
        self.cached_tokens = 0
        """Tokens of the prompts that the prefix cache had."""

    def begin(self, asked: Sequence[Read]) -> None:
        """Take the request's place in the admission; nothing refuses it afterwards.

        Raises:
            RateLimitError: the server takes no more.
        """
        self._first = self._admission.ticket(self._key, len(asked[0].prompt), 1, 1, self._deadline)

    async def read(self, asked: Sequence[Read]) -> list[dict[Tokens, float]]:
        """Log-probability of the last token of each of `Read.steps`, after the prompt and the tokens before it.

        Raises:
            ApiError: the engine failed.
        """
        found: list[dict[Tokens, float]] = []
        # The first prompt alone, so that the others, which begin as it does, find that in the cache.
        for part in (asked[:1], asked[1:]):
            for delta in await self._run([_Place(one) for one in part]):
                self.cached_tokens += delta.cached_tokens
                found.append(_likeliest(delta))
        missing = [(at, step) for at, one in enumerate(asked) for step in one.steps if step not in found[at]]
        forced = [_Place(asked[at], step[:-1], step[-1]) for at, step in missing]
        for (at, step), delta in zip(missing, await self._run(forced), strict=True):
            found[at][step] = _own(delta) if delta.token_ids[0] == step[-1] else NEVER
        return found

    async def _run(self, places: Sequence[_Place]) -> list[TokenDelta]:
        found: list[TokenDelta] = []
        while len(found) < len(places):
            requests: list[GenerationRequest] = []
            tokens = 0
            for place in places[len(found) : len(found) + self._most]:
                tokens += place.length
                if requests and tokens > _TOKENS_AT_ONCE:
                    break
                requests.append(self._request(place))
            found += await _Work(self._engine, requests, self._ticket(len(requests))).done()
        return found

    def _request(self, place: _Place) -> GenerationRequest:
        bias = {} if place.forced is None else {place.forced: _FORCED}
        return GenerationRequest(
            request_id=0,
            prompt_token_ids=[*place.asked.prompt, *place.after],
            max_tokens=1,
            sampling=SamplingParams(temperature=0.0, logit_bias=bias),
            logprobs=self._likeliest if place.forced is None else 0,
            lora_name=self._lora_name,
            media=place.asked.media,
        )

    def _ticket(self, count: int) -> Ticket:
        first, self._first = self._first, None
        if first is not None:
            return first
        # The prompts are in the cache by now, or the most of them.
        return Ticket(self._admission, self._key, count, 2 * count, 1, count, self._deadline)


def _likeliest(delta: TokenDelta) -> dict[Tokens, float]:
    """The tokens that a delta's first place tells the log-probabilities of."""
    logprobs = delta.logprobs
    assert logprobs is not None
    found: dict[Tokens, float] = {(delta.token_ids[0],): _own(delta)}
    for token_id, value in zip(logprobs.top_token_ids[0], logprobs.top_logprobs[0], strict=True):
        found[(token_id,)] = value
    return found


def _own(delta: TokenDelta) -> float:
    assert delta.logprobs is not None
    return delta.logprobs.token_logprobs[0]


class _Work(EngineWork[TokenDelta]):
    """The engine's work on some requests of one token each, every one in a place of its batch."""

    def completion_tokens(self) -> int:
        """One of each request."""
        return len(self._found)

    def result(self, delta: TokenDelta) -> TokenDelta | None:
        """The first delta with a token."""
        return delta if delta.token_ids else None

    def ended_one(self) -> None:
        """Give the place back."""
        self._ticket.sequence_ended()
