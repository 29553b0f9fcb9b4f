"""What the sampler does to scores, against plain definitions, with the last tokens known to the device alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.core.engine_types import GenerationRequest, Grammar, SamplingParams
from openai_bls.engines.not_finite import NOT_FINITE
from openai_bls_transformers.runners.runner import Sampling
from openai_bls_transformers.runners.sampler import Sampler, likeliest
from openai_bls_transformers.sampling.logits_processors import HostLogitsProcessors
from tests.engine_contract.support import request

VOCAB = 40
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ANY_GRAMMAR = Grammar(kind="regex", text="x")


class Fixed:
    """A constraint that allows the same tokens for ever."""

    ended = False

    def __init__(self, allowed: Sequence[int]) -> None:
        self.allowed = allowed

    def fill(self, mask: npt.NDArray[np.int32]) -> None:
        bits = np.zeros(len(mask) * 32, bool)
        bits[list(self.allowed)] = True
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token_id: int) -> bool:
        return token_id in self.allowed


def state_at(
    asked: GenerationRequest,
    output: Sequence[int],
    processors: HostLogitsProcessors | None,
    *,
    flying: bool,
    again: int,
) -> Any:
    """A sequence about to get the token after `output`; its last token may be on its way, and its first `again`
    output tokens may have become a part of the prompt."""
    known = list(output)
    if flying and known:
        known.pop()
    tokens = [*asked.prompt_token_ids, *known]
    split = len(asked.prompt_token_ids) + min(again, len(known))
    sampling = Sampling(asked.sampling.temperature, 1.0, 0, 0.0, asked.sampling.seed or 0, processors)
    return SimpleNamespace(
        initial_tokens=tokens[:split],
        generated_tokens=tokens[split:],
        position_offset=len(asked.prompt_token_ids) + len(output),
        logit_processor_kwargs={"sampling": sampling},
    )


def run(sampler: Sampler, states: Sequence[Any], last: Sequence[int], logits: torch.Tensor) -> list[int]:
    """A step of `pick`, as the runner with CUDA graphs has it."""
    args = torch.zeros(5, len(states), dtype=torch.int32)
    sampler.prepare_tensor_args([SimpleNamespace(state=state, has_new_token=True) for state in states], args)
    ids = torch.tensor(last, dtype=torch.int32, device=DEVICE)
    logits = logits.clone().to(DEVICE)
    return [int(token) for token in sampler.pick(ids, logits, args.to(DEVICE), likeliest(logits))]


def changed(asked: GenerationRequest, output: Sequence[int], scores: torch.Tensor) -> list[float]:
    """The definition, a token at a time."""
    params, found = asked.sampling, []
    counts, everything = Counter(output), {*asked.prompt_token_ids, *output}
    text = [*asked.prompt_token_ids, *output]
    for token, value in enumerate(scores.tolist()):
        score = value + params.logit_bias.get(token, 0.0)
        if token in everything:
            penalty = params.repetition_penalty
            score = score * penalty if score < 0 else score / penalty
        score -= params.presence_penalty * (counts[token] > 0) + params.frequency_penalty * counts[token]
        for word in asked.bad_words:
            if word[-1] == token and (len(word) == 1 or tuple(text[-len(word) + 1 :]) == word[:-1]):
                score = -math.inf
        if len(output) < asked.min_tokens and token in asked.stop_token_ids:
            score = -math.inf
        found.append(score)
    return found


def processors_of(asked: GenerationRequest, constraint: Any = None) -> HostLogitsProcessors | None:
    return HostLogitsProcessors(asked, constraint) if HostLogitsProcessors.needed(asked) else None


TOKENS = st.integers(0, 9)  # few, so that they come again
REQUESTS = st.builds(
    lambda prompt, bias, penalties, words, stops, least, plain: request(
        1,
        prompt=prompt,
        max_tokens=50,
        sampling=SamplingParams(temperature=0)
        if plain
        else SamplingParams(
            temperature=0,
            logit_bias=bias,
            repetition_penalty=penalties[0],
            presence_penalty=penalties[1],
            frequency_penalty=penalties[2],
        ),
        bad_words=tuple(map(tuple, words)),
        stop_token_ids=tuple(stops),
        min_tokens=least,
    ),
    st.lists(TOKENS, min_size=1, max_size=6),
    st.dictionaries(TOKENS, st.floats(-5, 5), max_size=4),
    st.tuples(st.sampled_from([1.0, 1.3, 0.7]), st.sampled_from([0.0, 1.5, -2.0]), st.sampled_from([0.0, 0.8, -0.5])),
    st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=3),
    st.lists(TOKENS, max_size=3),
    st.integers(0, 8),
    st.booleans(),
)


@settings(deadline=None, max_examples=150)
@given(
    asked=st.lists(REQUESTS, min_size=1, max_size=4),
    outputs=st.lists(st.lists(TOKENS, max_size=9), min_size=4, max_size=4),
    flying=st.booleans(),
    again=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_scores_are_changed_as_defined(
    asked: list[GenerationRequest], outputs: list[list[int]], flying: bool, again: int, seed: int
) -> None:
    """Step by step, as tokens come in; a choice is right if nothing has a higher score."""
    sampler = Sampler(on_gpu=False)
    processors = [processors_of(one) for one in asked]
    random = torch.Generator().manual_seed(seed)
    for length in range(max(map(len, outputs)) + 1):
        done = [output[:length] for output in outputs[: len(asked)]]
        states = [
            state_at(one, output, processor, flying=flying, again=again if length > 4 else 0)
            for one, output, processor in zip(asked, done, processors, strict=True)
        ]
        last = [(output or one.prompt_token_ids)[-1] for one, output in zip(asked, done, strict=True)]
        logits = torch.randn(len(asked), VOCAB, generator=random) * 2
        chosen = run(sampler, states, last, logits)
        for token, one, output, row in zip(chosen, asked, done, logits, strict=True):
            wanted = changed(one, output, row)
            assert wanted[token] == pytest.approx(max(wanted), abs=1e-5)


def test_rows_without_processors_are_not_touched() -> None:
    sampler = Sampler(on_gpu=False)
    plain = request(1)
    asked = request(2, sampling=SamplingParams(temperature=0, logit_bias={3: 100.0}))
    logits = torch.randn(3, VOCAB)
    states = [state_at(one, [], processors_of(one), flying=False, again=0) for one in (plain, asked, plain)]
    best = logits.argmax(-1).tolist()
    assert run(sampler, states, [7, 7, 7], logits) == [best[0], 3, best[2]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite(value: float, dtype: torch.dtype, temperature: float) -> None:
    """Whatever the request asks for, and no other row; logits of minus infinity are tokens that the model rules out."""
    logits = torch.randn(5, VOCAB).to(dtype)
    logits[1, 3:] = logits[3, :] = value
    logits[2, 1:] = -torch.inf
    if not math.isinf(value) or value > 0:
        logits[3, :] = 0.0
        logits[3, 17] = value
    further: list[dict[str, Any]] = [{}, {"logprobs": 1}, {}, {"grammar": ANY_GRAMMAR}, {"bad_words": ((2,),)}]
    asked = [request(i, sampling=SamplingParams(temperature=temperature), **more) for i, more in enumerate(further)]
    states = [
        state_at(one, [], processors_of(one, Fixed([17, 18]) if one.grammar else None), flying=False, again=0)
        for one in asked
    ]
    found = run(Sampler(on_gpu=False), states, [7] * 5, logits)
    spoiled = {3} if value == -torch.inf else {1, 3}
    assert {row for row, token in enumerate(found) if token == NOT_FINITE} == spoiled
    assert found[2] == 0
    assert all(0 <= token < VOCAB for row, token in enumerate(found) if row not in spoiled)


def test_half_precision_is_changed_at_full() -> None:
    """A bias that bfloat16 would round away decides."""
    asked = request(1, sampling=SamplingParams(temperature=0, logit_bias={5: 0.01}))
    logits = torch.zeros(1, VOCAB, dtype=torch.bfloat16)
    logits[0, [3, 5]] = 60.0
    state = state_at(asked, [], processors_of(asked), flying=False, again=0)
    assert run(Sampler(on_gpu=False), [state], [7], logits) == [5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_left_the_grammar_decides(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=4)
    asked = request(
        1, sampling=params, grammar=ANY_GRAMMAR, bad_words=((3,),), stop_token_ids=(8,), min_tokens=5, max_tokens=9
    )
    for allowed, wanted in [([3, 8], {3, 8}), ([8], {8}), ([3, 4], {4}), ([4, 8], {4})]:
        state = state_at(asked, [], processors_of(asked, Fixed(allowed)), flying=False, again=0)
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
        assert set(run(Sampler(on_gpu=False), [state], [7], logits)) <= wanted
