"""Requests over the demo checkpoint whose answers are the same on every exact engine."""

from __future__ import annotations

import itertools
import random
from typing import Any

from openai_bls.core.engine_types import GenerationRequest, SamplingParams

VOCAB = range(3, 3000)
"""Ids of the demo's vocabulary that are text."""

PENALTIES: tuple[dict[str, float], ...] = (
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 1.2},
    {"presence_penalty": -0.7, "frequency_penalty": 0.9},
    {"repetition_penalty": 1.2, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"repetition_penalty": 1.5, "presence_penalty": 2.0, "frequency_penalty": -0.3},
)


def prompt(number: int, length: int = 12) -> list[int]:
    """A random prompt, another for each number."""
    return random.Random(number).choices(VOCAB, k=length)


def asked(ids: list[int], max_tokens: int = 24, **more: Any) -> GenerationRequest:
    """A greedy request, unless `more` says otherwise; fields of `SamplingParams` and `GenerationRequest` mix."""
    own = {name: more.pop(name) for name in list(more) if name in SamplingParams.__struct_fields__}
    sampling = SamplingParams(**{"temperature": 0.0, **own})
    return GenerationRequest(request_id=0, prompt_token_ids=ids, max_tokens=max_tokens, sampling=sampling, **more)


def penalised() -> list[GenerationRequest]:
    """42 greedy requests with penalties, some of them with biases before them."""
    made = []
    for number, (penalties, first) in enumerate(itertools.product(PENALTIES, range(6))):
        ids = prompt(first, 6 + 3 * first)
        bias = {ids[0]: 4.0, ids[-1]: -3.0} if number % 3 == 0 else {}
        made.append(asked(ids, 32, logprobs=3, logit_bias=bias, **penalties))
    return made


def shaped() -> list[GenerationRequest]:
    """Greedy requests with bans, biases, stops and log-probabilities of the prompt."""
    ids = prompt(50)
    return [
        asked(ids, 24, logprobs=5, prompt_logprobs=3),
        asked(prompt(51, 200), 8, logprobs=0, prompt_logprobs=0),
        asked(ids, 0, prompt_logprobs=2),
        asked(ids, 0),
        asked(ids, 16, logit_bias={410: -100.0, 41: -100.0}),
        asked(ids, 16, logit_bias={77: 100.0}),
        asked(ids, 24, bad_words=((14,), (3,), (579, 460), (16, 579, 709))),
        asked(ids, 24, stop_token_ids=(14, 16, 3, 2)),
        asked(ids, 24, stop_token_ids=(14, 16, 3, 2), min_tokens=10),
        asked(ids, 24, stop_words=((14, 579), (3,), (16,))),
        asked(ids, 24, stop_words=((14, 579), (3,), (16,)), min_tokens=9),
        asked(ids, 24, top_k=1, temperature=1.0, seed=3),
    ]
