"""Requests for which the model computes NaN: an error for each of them, and right answers for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from openai_bls.core.engine_types import SamplingParams
from tests.engine_contract.support import request, run_all
from tests_transformers.engine.engine.test_engine import PROMPTS, expected, model
from tests_transformers.engine.overlapping import IN_EVERY_WAY, steps

if TYPE_CHECKING:
    from tests.engine_contract.fixtures import EngineFactory

__all__ = ["expected", "model", "steps"]  # fixtures

SPOILED = 401
COUNT = 12
MESSAGE = (
    "The model tiny-qwen computes NaN or infinity for this request, so it has no answer: its weights are corrupt, or "
    "its data type is too narrow for them."
)


def spoil(engine: Any) -> None:
    """Let one token's embedding be NaN, as a corrupt row of the weights is, after the self-test."""

    def hook(module: Any, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        output[args[0] == SPOILED] = torch.nan

    engine._prefill_queue._model.model.embed_tokens.register_forward_hook(hook)


@IN_EVERY_WAY
def test_each_such_request_ends_with_an_error(start: EngineFactory, expected: list[list[int]]) -> None:
    """Whatever it asks for, and wherever in it the token is; what it began like is not spoiled for others."""
    engine, recorder = start()
    spoil(engine)
    good = [prompt for prompt in PROMPTS if SPOILED not in prompt]
    long = good[-1]
    bad: list[dict[str, Any]] = [
        {"prompt": [SPOILED]},
        {"prompt": [*long, SPOILED], "max_tokens": 1},
        {"prompt": [*long[:40], SPOILED, *long[40:]], "sampling": SamplingParams(top_p=0.9, seed=3)},
        {"prompt": [SPOILED, 4], "logprobs": 5, "min_tokens": 3, "stop_token_ids": (7,)},
        {"prompt": [4, 5, SPOILED], "sampling": SamplingParams(temperature=0, logit_bias={SPOILED: -100.0})},
        # It comes as a token of the output.
        {"prompt": [4, 5, 6], "sampling": SamplingParams(temperature=0, logit_bias={SPOILED: 100.0})},
        {"prompt": [4, SPOILED, 6], "prompt_logprobs": 0},
        {"prompt": [4, SPOILED, 6], "max_tokens": 0, "pooling": "mean"},
        {"prompt": [4, SPOILED], "max_tokens": 0, "pooling": "last"},
    ]
    asked = [request(i, **{"max_tokens": COUNT, **fields}) for i, fields in enumerate(bad)]
    ids = range(100, 100 + len(good))
    plain = [request(i, prompt=prompt, max_tokens=COUNT) for i, prompt in zip(ids, good, strict=True)]
    wanted = [tokens[:COUNT] for prompt, tokens in zip(PROMPTS, expected, strict=True) if SPOILED not in prompt]
    assert not any(SPOILED in tokens for tokens in wanted)
    for _ in range(2):
        mixed = [one for pair in zip(asked, plain, strict=False) for one in pair] + plain[len(asked) :]
        found = dict(zip([one.request_id for one in mixed], run_all(engine, recorder, mixed), strict=True))
        for i in range(len(bad)):
            end = recorder.ends[i]
            assert (end.finish_reason, end.error, end.invalid) == ("error", MESSAGE, False), bad[i]
            assert all(token >= 0 for token in found[i])
        assert found[5] == [SPOILED]
        assert [found[i] for i in ids] == wanted
        recorder.forget([*range(len(bad)), *ids])
    assert engine.stats().running == 0


def test_a_draft_that_is_right_up_to_there(start: EngineFactory, model: Any) -> None:
    """The rows of a draft are rows like others."""
    engine, recorder = start(speculative_method="ngram")
    spoil(engine)
    bias = SamplingParams(temperature=0, logit_bias={SPOILED: 100.0})
    repeated = [11, 12, 13, SPOILED, 14] * 3
    run_all(
        engine,
        recorder,
        [
            request(0, prompt=[9, 9, 9], max_tokens=COUNT, sampling=bias, prediction=repeated),
            request(1, prompt=repeated[:3] * 4, max_tokens=COUNT),
        ],
    )
    assert recorder.ends[0].error == MESSAGE
    assert recorder.reason(1) == "length"


def test_rows_that_share_a_pass_of_embeddings(start: EngineFactory) -> None:
    engine, recorder = start()
    spoil(engine)
    prompts = [[3, 4], [SPOILED, 4, 5], [6]]
    run_all(engine, recorder, [request(i, prompt=p, max_tokens=0, pooling="last") for i, p in enumerate(prompts)])
    assert [recorder.reason(i) for i in range(3)] == ["stop", "error", "stop"]
    assert recorder.ends[1].error == MESSAGE


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sequences_of_a_step_do_not_see_each_other(
    start: EngineFactory, expected: list[list[int]], attention: str
) -> None:
    """Zero times NaN is NaN: attention may not multiply what a mask rules out."""
    engine, recorder = start(attention=attention)
    spoil(engine)
    asked = [request(0, prompt=[1, SPOILED, 2]), *(request(i, prompt=PROMPTS[i]) for i in (4, 7, 9))]
    found = run_all(engine, recorder, asked)
    assert recorder.ends[0].error == MESSAGE
    assert found[1:] == [expected[i][:8] for i in (4, 7, 9)]
