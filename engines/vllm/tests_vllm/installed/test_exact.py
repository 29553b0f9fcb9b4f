"""Answers of vLLM held token for token against the embedded engine's, and vLLM's seeds against themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.support.asking import Answer, Asker
from openai_bls.core.engine_types import GenerationRequest, Logprobs
from tests.prompt_logprobs import unpacked
from tests_vllm.installed import cases
from tests_vllm.installed.conftest import LIMIT_S, Served

pytestmark = pytest.mark.timeout(1800)

TOLERANCE = 1e-3


def compare(found: Sequence[Answer], wanted: Sequence[Answer]) -> None:
    """The same tokens, ends and likeliest tokens, and log-probabilities within the tolerance."""
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.error is None, number
        assert (one.tokens, one.reason, one.stop_token_id) == (other.tokens, other.reason, other.stop_token_id), number
        close(one.logprobs, other.logprobs)
        assert (one.prompt_logprobs is None) == (other.prompt_logprobs is None)
        if one.prompt_logprobs is not None and other.prompt_logprobs is not None:
            close(unpacked(one.prompt_logprobs), unpacked(other.prompt_logprobs))


def close(one: Logprobs, other: Logprobs) -> None:
    assert one.top_token_ids == other.top_token_ids
    assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=TOLERANCE)
    for own, wanted in zip(one.top_logprobs, other.top_logprobs, strict=True):
        assert own == pytest.approx(wanted, abs=TOLERANCE)


@pytest.mark.parametrize("requests", [cases.penalised(), cases.shaped()], ids=["penalties", "bans, biases and ends"])
def test_like_the_embedded_engine(vllm: Served, embedded: Asker, requests: list[GenerationRequest]) -> None:
    compare(vllm.ask(requests), embedded.ask(requests, LIMIT_S))


def test_a_seed_gives_the_same_whatever_else_is_in_the_batch(vllm: Served) -> None:
    # The long one would be computed in chunks.
    prompts = [cases.prompt(60 + i) for i in range(5)] + [cases.prompt(70, 1500)]
    seeded = [
        cases.asked(ids, 16, temperature=1.0, top_p=0.9, seed=seed)
        for ids in prompts
        for seed in (0, (1 << 63) + 5, (1 << 64) - 2)
    ]
    alone = [answer.tokens for answer in vllm.ask(seeded, at_once=1)]
    noise = [cases.asked(cases.prompt(80 + i, 5 + 30 * i), 40, temperature=1.2) for i in range(12)]
    together = [answer.tokens for answer in vllm.ask([*noise[:6], *seeded, *noise[6:]])]
    assert together[6 : 6 + len(seeded)] == alone
    assert len({tuple(tokens) for tokens in alone[:3]}) > 1
