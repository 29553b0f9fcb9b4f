"""Requests in vLLM's words, and what vLLM would do otherwise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import Grammar, SamplingParams
from openai_bls.engines import capabilities
from openai_bls_vllm.requests.sampling import GRAMMAR_EXCLUDES, Runner, refusal, sampling_params
from tests_vllm.contracts.tables import VERSIONS, members
from tests_vllm.engine.vllm_support import INFO, asked

FIRST, SECOND = Runner(), Runner(second=True)
REGEX = Grammar("regex", "a")


def params(runner: Runner = FIRST, **fields: Any) -> dict[str, Any]:
    own = {name: fields.pop(name) for name in list(fields) if name in SamplingParams.__struct_fields__}
    return sampling_params(asked(sampling=SamplingParams(**own), **fields), INFO, runner)


def test_greedy_is_greedy_whatever_else_is_set() -> None:
    found = params(temperature=0, top_p=0.1, top_k=3, min_p=0.2, seed=7, presence_penalty=1)
    assert found["temperature"] == 0
    assert not {"top_p", "top_k", "min_p", "seed"} & set(found)
    assert found["presence_penalty"] == 1


@pytest.mark.parametrize(("top_k", "given"), [(0, 0), (5, 5), (99, 99), (100, 0), (5000, 0)])
def test_top_k_of_the_whole_vocabulary_is_off(top_k: int, given: int) -> None:
    assert params(top_k=top_k)["top_k"] == given


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 2])
def test_seeds_are_told_apart(seed: int) -> None:
    assert params(seed=seed)["seed"] == seed
    signed = params(SECOND, seed=seed)["seed"]
    assert -(1 << 63) <= signed < 1 << 63
    assert signed % (1 << 64) == seed
    assert signed != -1  # vLLM's word for none


def test_words_and_ends() -> None:
    found = params(bad_words=((3,), (4, 5)), stop_token_ids=(2, 9), min_tokens=3, stop_words=((8,),))
    assert found["_bad_words_token_ids"] == [[3], [4, 5]]
    assert (found["stop_token_ids"], found["min_tokens"]) == ([2, 9], 3)
    assert "stop" not in found
    # Without end tokens there is nothing for vLLM to hold back.
    assert "min_tokens" not in params(min_tokens=3, stop_words=((8,),))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_the_fields(version: str) -> None:
    found = params(
        seed=1,
        logit_bias={3: 1.0},
        bad_words=((3,),),
        stop_token_ids=(2,),
        logprobs=1,
        prompt_logprobs=1,
    )
    assert set(found) <= set(members(version, "vllm.SamplingParams", "fields"))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("temperature", {"temperature": 0.009}),
        ("temperature", {"temperature": 2.1}),
        ("seed", {"seed": (1 << 64) - 1}),
        ("prompt_logprobs", {"max_tokens": 0, "prompt_logprobs": 0, "prompt_token_ids": [1] * 64}),
    ],
)
def test_what_vllm_does_otherwise_is_refused_by_name(field: str, changes: dict[str, Any]) -> None:
    own = {name: changes[name] for name in changes if name in SamplingParams.__struct_fields__}
    rest = {name: value for name, value in changes.items() if name not in own}
    problem = refusal(asked(sampling=SamplingParams(**own), **rest), INFO, FIRST)
    assert problem is not None
    assert problem.startswith(field)


@pytest.mark.parametrize("given", [{"logprobs": 0}, {"bad_words": ((1,),)}, {"allowed_token_ids": (1,)}])
def test_what_vllm_does_otherwise_under_a_grammar_is_refused_by_name(given: dict[str, Any]) -> None:
    info = msgspec.structs.replace(INFO, grammar_excludes=GRAMMAR_EXCLUDES)
    assert capabilities.refusal(asked(**given), info) is None
    problem = capabilities.refusal(asked(grammar=REGEX, **given), info)
    assert problem is not None
    assert problem.startswith(next(iter(given)))


@pytest.mark.parametrize("temperature", [0, 0.01, 1, 2])
def test_what_vllm_takes_passes(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=(1 << 64) - 2)
    assert refusal(asked(sampling=sampling, logprobs=3, bad_words=((1,),), min_tokens=2), INFO, SECOND) is None
    assert refusal(asked(sampling=sampling, grammar=REGEX, min_tokens=2), INFO, FIRST) is None


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("logit_bias", {"sampling": SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))}),
        ("stop_token_ids", {"stop_token_ids": tuple(range(129)), "min_tokens": 1}),
        ("stop_token_ids", {"stop_token_ids": tuple(range(128)), "min_tokens": 1, "grammar": REGEX}),
        ("allowed_token_ids", {"allowed_token_ids": tuple(range(1025))}),
        ("bad_words", {"bad_words": tuple((i,) for i in range(129))}),
        ("bad_words", {"bad_words": ((1,) * 1025,)}),
    ],
)
def test_buffers_of_the_second_runner(field: str, changes: dict[str, Any]) -> None:
    """It fails whole where one is exceeded."""
    problem = refusal(asked(**changes), INFO, SECOND)
    assert problem is not None
    assert problem.startswith(field)
    assert refusal(asked(**changes), INFO, FIRST) is None


def test_kv_transfer_params_are_extra_arguments() -> None:
    assert "extra_args" not in params()
    given_ = {"do_remote_decode": True}
    assert params(kv_transfer_params=given_)["extra_args"] == {"kv_transfer_params": given_}
