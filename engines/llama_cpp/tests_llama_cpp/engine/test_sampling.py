"""Sampling from llama.cpp's logits, against that of the embedded engine: the same seed draws the same token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.engines.not_finite import NotFiniteError
from openai_bls.engines.random_bits import random_bits
from openai_bls_llama_cpp.sampling import TokenSampler, logprobs_of
from openai_bls_transformers.sampling.sampling import Plan, choose

VOCAB = 4096
PROMPT = [5, 6, 7]
ALL = Plan(sampled=True, top_k=VOCAB, top_p=True, min_p=True)


def sampled(logits: Any, token_ids: Sequence[int] = PROMPT, **fields: Any) -> int:
    params = {name: fields.pop(name) for name in SamplingParams.__struct_fields__ if name in fields}
    request = GenerationRequest(1, list(PROMPT), 64, SamplingParams(**params), **fields)
    return TokenSampler(request).choose(logits.copy(), token_ids, None).token_id


def random_logits(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 5},
        {"top_p": 0.9},
        {"top_p": 0.9, "top_k": 700, "temperature": 2.0},
        {"min_p": 0.1},
        {"top_p": 0.01},
    ],
    ids=str,
)
def test_draws_are_those_of_the_embedded_engine(params: dict[str, Any]) -> None:
    for seed in range(40):
        logits = random_logits(seed)
        found = sampled(logits, seed=seed, **params)
        bits = random_bits(np.array([seed], np.uint64), np.array([len(PROMPT)], np.uint64))
        of = SamplingParams(**params)
        row: list[Any] = [torch.tensor([value]) for value in (of.temperature, of.top_p, of.top_k, of.min_p)]
        scores: Any = torch.from_numpy(logits)[None]
        expected = choose(scores, row[0], row[1], row[2], row[3], torch.from_numpy(bits), ALL)
        assert found == int(expected)


def test_scores_are_changed_before_the_choice() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[10, 11, 12]] = 3.0, 2.0, 1.0
    greedy: dict[str, Any] = {"temperature": 0.0}
    assert sampled(logits, **greedy) == 10
    assert sampled(logits, logit_bias={10: -100.0}, **greedy) == 11
    assert sampled(logits, bad_words=((10,), (7, 11)), **greedy) == 12
    assert sampled(logits, bad_words=((10,), (8, 11)), **greedy) == 11
    assert sampled(logits, stop_token_ids=(10,), min_tokens=1, **greedy) == 11
    assert sampled(logits, [*PROMPT, 1], stop_token_ids=(10,), min_tokens=1, **greedy) == 10
    # A penalty on repetition counts the prompt, the others do not.
    prompt_first = np.zeros(VOCAB, np.float32)
    prompt_first[[5, 11]] = 3.0, 2.0
    assert sampled(prompt_first, repetition_penalty=2.0, **greedy) == 11
    assert sampled(prompt_first, presence_penalty=2.0, frequency_penalty=2.0, **greedy) == 5


def test_penalties_count_the_output() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[10, 11]] = 3.0, 2.0
    request = GenerationRequest(1, list(PROMPT), 9, SamplingParams(temperature=0, frequency_penalty=0.6))
    sampler, token_ids = TokenSampler(request), list(PROMPT)
    for _ in range(4):
        token_ids.append(sampler.choose(logits.copy(), token_ids, None).token_id)
    assert token_ids[3:] == [10, 10, 11, 10]


def test_logprobs_and_numbers_that_are_none() -> None:
    logits = random_logits()
    expected = torch.log_softmax(torch.from_numpy(logits), -1)
    found = logprobs_of(logits, 17, 5)
    top = expected.topk(5)
    assert found.top_token_ids == [top.indices.tolist()]
    assert [*found.token_logprobs, *found.top_logprobs[0]] == pytest.approx(
        [float(expected[17]), *top.values.tolist()], abs=1e-5
    )
    logits[3] = np.nan
    with pytest.raises(NotFiniteError):
        sampled(logits)


def test_a_choice_that_bans_or_penalties_change() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[10, 11, 12]] = 3.0, 2.0, 1.0
    banned: dict[str, Any] = {"temperature": 0.0, "min_tokens": 9}
    assert sampled(logits, stop_token_ids=(11,), **banned) == 10
    assert sampled(logits, stop_token_ids=(10,), **banned) == 11
    assert sampled(logits, temperature=0.0, logit_bias={12: 5.0}) == 12
    assert sampled(logits, [*PROMPT, 12], temperature=0.0, bad_words=[(12, 10)]) == 11
