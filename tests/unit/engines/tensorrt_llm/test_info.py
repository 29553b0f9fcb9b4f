"""What a TensorRT-LLM engine says of itself, and what it refuses beyond admission."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import EngineInfo, GenerationRequest, Grammar, SamplingParams
from openai_bls.engines.capabilities import ALL_FIELDS, refusal
from openai_bls.engines.tensorrt_llm import info as limits
from openai_bls.engines.tensorrt_llm.info import engine_info
from openai_bls.engines.tensorrt_llm.interface import Flow
from tests.unit.engines.tensorrt_llm.scripted_api import FACTS, TUNED, manifest


def described(**changes: Any) -> EngineInfo:
    built = changes.pop("manifest", manifest())
    facts = changes.pop("facts", FACTS)
    fields: dict[str, Any] = {
        "version": "1.2.1",
        "supported": ALL_FIELDS,
        "max_logprobs": 5,
        "grammar_backend": "xgrammar",
        "grammar_kinds": ("regex",),
    }
    return engine_info(built, facts, **(fields | changes))


def test_what_it_says() -> None:
    info = described(manifest=manifest(lora=TUNED))
    assert info == EngineInfo(
        engine="tensorrt_llm",
        model_name="scripted",
        max_model_len=64,
        max_batch_size=4,
        vocab_size=100,
        eos_token_ids=(90, 91),
        pad_token_id=92,
        supported=ALL_FIELDS,
        version="tensorrt_llm 1.2.1",
        created=5,
        max_logprobs=5,
        grammar_backend="xgrammar",
        grammar_kinds=("regex",),
        lora_names=("tuned",),
        max_loras=2,
        max_lora_rank=8,
    )


def test_grammars_and_adapters_go_by_what_there_is() -> None:
    info = described(grammar_backend="")
    assert not {"grammar", "lora_name"} & set(info.supported)
    assert info.grammar_kinds == ()
    info = described(supported=(), manifest=manifest(lora=TUNED))
    assert info.supported == ("grammar", "lora_name")


def test_defaults_that_it_does_not_honour_are_not_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Or every request would be refused for what it does not say."""
    defaults = SamplingParams(temperature=0.7, top_k=20, min_p=0.1, repetition_penalty=1.1)
    facts = msgspec.structs.replace(FACTS, sampling_defaults=defaults)
    info = described(facts=facts, supported=("temperature", "top_k", "stop_token_ids"))
    assert info.sampling_defaults == SamplingParams(temperature=0.7, top_k=20)
    assert "min_p, repetition_penalty" in caplog.text
    request = GenerationRequest(request_id=1, prompt_token_ids=[1], max_tokens=1, sampling=info.sampling_defaults)
    assert refusal(request, info) is None


def asked(**fields: Any) -> GenerationRequest:
    given: dict[str, Any] = {"request_id": 1, "prompt_token_ids": [1, 2], "max_tokens": 4} | fields
    return GenerationRequest(**given)


REFUSED = {
    "max-input-len": asked(prompt_token_ids=[1] * 49),
    "can hold back one": asked(min_tokens=1, stop_token_ids=(90, 91)),
}
FINE = [
    asked(prompt_token_ids=[1] * 48),
    asked(min_tokens=1, stop_token_ids=(90,)),
    asked(stop_token_ids=(90, 91)),
    asked(grammar=Grammar(kind="regex", text="a")),
]


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    problem = limits.refusal(REFUSED[what], manifest(), described())
    assert problem is not None
    assert what in problem


@pytest.mark.parametrize("request_", FINE)
def test_not_refused(request_: GenerationRequest) -> None:
    assert limits.refusal(request_, manifest(), described()) is None


@pytest.mark.parametrize("flow", ["tensorrt", "pytorch"])
def test_a_prompt_that_one_step_does_not_hold(flow: Flow) -> None:
    request = msgspec.structs.replace(asked(), prompt_token_ids=[1, 2, 3])
    built = manifest(flow=flow, max_input_len=3, max_num_tokens=2)
    assert limits.refusal(request, built, described(), chunked_context=True) is None
    says = "prompt_token_ids has 3 tokens: this engine takes prompts of at most 2 (enable_chunked_context is off)"
    assert limits.refusal(request, built, described(), chunked_context=False) == says
    # Where it is not known how much a step holds, TensorRT-LLM itself refuses.
    unknown = manifest(flow=flow, max_input_len=3, max_num_tokens=0)
    assert limits.refusal(request, unknown, described(), chunked_context=False) is None
