"""Sampling of one sequence's next token from llama.cpp's logits, by this project's order and seeds.

llama.cpp has samplers of its own. They take seeds of 32 bits, count a prompt's tokens for every penalty, and hold
outputs to another form of grammar, so that a request would mean something else here than with the other engines.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openai_bls.core.engine_types import GenerationRequest, Logprobs
from openai_bls.engines.capabilities import MAX_LOGPROBS
from openai_bls.engines.grammars.matcher import Constraint
from openai_bls.engines.not_finite import NotFiniteError
from openai_bls.engines.random_bits import random_bits

Floats = npt.NDArray[np.float32]

_FIRST_CANDIDATES = 64
"""Tokens that are sorted first for top_p; a sort of a whole vocabulary takes milliseconds."""


class Choice(NamedTuple):
    """A sampled token."""

    token_id: int
    logprobs: Logprobs | None
    """Log-probabilities of the token, if its request asks for some."""


class TokenSampler:
    """Sampler of one request.

    Args:
        request: the request.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        params = request.sampling
        self._seed = secrets.randbits(64) if params.seed is None else params.seed
        self._prompt_length = len(request.prompt_token_ids)
        self._has_penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (
            1, 0, 0,
        )  # fmt: skip
        self._can_raise = self._has_penalties or bool(params.logit_bias)
        # Token → how often the output holds it; those of the prompt alone count for the repetition penalty.
        known = request.prompt_token_ids if self._has_penalties and params.repetition_penalty != 1 else ()
        self._counts: dict[int, int] = dict.fromkeys(known, 0)

    def choose(self, logits: Floats, token_ids: Sequence[int], constraint: Constraint | None) -> Choice:
        """The next token.

        Args:
            logits: shape [vocabulary]; may be changed.
            token_ids: prompt and output so far.
            constraint: constraint of the request's grammar.

        Raises:
            NotFiniteError: the model has computed NaN or infinity.
            GrammarError: no token fits the grammar.
        """
        # A NaN counts as the highest number.
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise NotFiniteError
        raw = logits.copy() if self._request.logprobs is not None else logits
        if self._changes(len(token_ids)) or constraint is not None:
            likeliest = logits[best]
            self._change(logits, token_ids, constraint)
            # Bans and grammars raise nothing: a likeliest token that they leave stays the likeliest.
            if self._can_raise or logits[best] != likeliest:
                best = int(logits.argmax())
        token_id = best
        if self._request.sampling.temperature > 0:
            token_id = self._draw(logits, best, len(token_ids))
        if self._has_penalties:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1
        asked = self._request.logprobs
        return Choice(token_id, None if asked is None else logprobs_of(raw, token_id, asked))

    def _changes(self, position: int) -> bool:
        request = self._request
        return bool(
            request.sampling.logit_bias or self._has_penalties or request.bad_words or self._holds_back_stops(position)
        )

    def _holds_back_stops(self, position: int) -> bool:
        return bool(self._request.stop_token_ids) and position < self._prompt_length + self._request.min_tokens

    def _change(self, logits: Floats, token_ids: Sequence[int], constraint: Constraint | None) -> None:
        banned = [*_completions(self._request.bad_words, token_ids)]
        if self._holds_back_stops(len(token_ids)):
            banned += self._request.stop_token_ids
        # Only bans can leave nothing of what a grammar allows; then the grammar counts.
        before = logits.copy() if constraint is not None and banned else None
        if bias := self._request.sampling.logit_bias:
            logits[[*bias]] += np.fromiter(bias.values(), np.float32)
        if self._has_penalties:
            self._penalize(logits)
        logits[banned] = -np.inf
        if constraint is None:
            return
        mask = np.empty(-(-logits.size // 32), np.int32)
        constraint.fill(mask)
        forbidden = np.unpackbits(mask.view(np.uint8), bitorder="little")[: logits.size] == 0
        logits[forbidden] = -np.inf
        if before is not None and logits.max() == -np.inf:
            before[forbidden] = -np.inf
            logits[:] = before

    def _penalize(self, logits: Floats) -> None:
        params = self._request.sampling
        ids = np.fromiter(self._counts.keys(), np.int64)
        counts = np.fromiter(self._counts.values(), np.float32)
        scores = logits[ids]
        repetition = np.float32(params.repetition_penalty)
        scores = np.where(scores < 0, scores * repetition, scores / repetition)
        logits[ids] = scores - (counts > 0) * params.presence_penalty - counts * params.frequency_penalty

    def _draw(self, scores: Floats, best: int, position: int) -> int:
        params = self._request.sampling
        # The maximum goes first: a tiny temperature then makes zeros and minus infinities, never NaN.
        with np.errstate(over="ignore"):
            probs = np.exp((scores - scores[best]) / np.float32(params.temperature))
        probs /= probs.sum()
        threshold = _threshold(probs, params.top_k, params.top_p)
        threshold = max(threshold, params.min_p * float(probs[best]))
        if threshold > 0:
            probs[probs < np.float32(threshold)] = 0
        cumulative = probs.cumsum(dtype=np.float64)
        bits = random_bits(np.array([self._seed], np.uint64), np.array([position], np.uint64)).view(np.uint32)[0]
        # In (0, 1), so that a target is always below the total and the token found has a probability.
        uniform = (float(bits) + 0.5) * 2.0**-32
        return min(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")), scores.size - 1)


def _threshold(probs: Floats, top_k: int, top_p: float) -> float:
    """The least probability that top_k and then top_p leave; 0 leaves all."""
    size = probs.size
    by_k = float(np.partition(probs, size - top_k)[size - top_k]) if 0 < top_k < size else 0.0
    if top_p >= 1:
        return by_k
    mass = top_p * (float(probs[probs >= np.float32(by_k)].sum()) if by_k else float(probs.sum()))
    count = min(size, max(top_k, _FIRST_CANDIDATES))
    while True:
        highest = np.sort(np.partition(probs, size - count)[size - count :])[::-1]
        reached = highest.cumsum() >= mass
        if reached[-1]:
            return max(by_k, float(highest[reached.argmax()]))
        if count == size:
            return by_k
        count = min(size, count * 8)


def _completions(words: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> Iterator[int]:
    """Tokens that would complete a forbidden word."""
    for word in words:
        head = word[:-1]
        if not head or tuple(token_ids[-len(head) :]) == head:
            yield word[-1]


def logprobs_of(logits: Floats, token_id: int, count: int) -> Logprobs:
    """Log-probabilities of a token and of the `count` likeliest ones, the likeliest first."""
    best = logits.max()
    total = float(best) + float(np.log(np.exp(logits - best).sum(dtype=np.float64)))
    ids: list[int] = []
    if count:
        # The same number for all, so that the order of equals does not depend on what is asked for.
        most = min(MAX_LOGPROBS, logits.size)
        found = np.argpartition(logits, logits.size - most)[logits.size - most :]
        ids = found[np.lexsort((found, -logits[found]))][:count].tolist()
    own = min(0.0, float(logits[token_id]) - total)
    return Logprobs([own], [ids], [[min(0.0, float(logits[one]) - total) for one in ids]])
