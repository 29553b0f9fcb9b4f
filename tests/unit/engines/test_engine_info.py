"""What an engine says of itself, from its manifest and its checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.engine_types import EngineInfo, GenerationRequest, SamplingParams
from openai_bls.core.manifest import LoraSettings, Manifest
from openai_bls.engines.capabilities import ALL_FIELDS, refusal
from openai_bls.engines.engine_info import engine_info

FACTS = CheckpointFacts(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    vocab_size=100,
    max_position_embeddings=64,
    kv_bytes_per_token=0,
    eos_token_ids=(90, 91),
    pad_token_id=92,
    sampling_defaults=SamplingParams(),
)
TUNED = LoraSettings({"tuned": "lora/tuned"}, max_loras=2, max_lora_rank=8)


def manifest(lora: LoraSettings = LoraSettings()) -> Manifest:  # noqa: B008
    return Manifest("toy", "scripted", max_model_len=64, max_batch_size=4, created=5, lora=lora)


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
    info = described(manifest=msgspec.structs.replace(manifest(lora=TUNED), max_images=3))
    assert info == EngineInfo(
        engine="toy",
        model_name="scripted",
        max_model_len=64,
        max_batch_size=4,
        vocab_size=100,
        eos_token_ids=(90, 91),
        pad_token_id=92,
        supported=ALL_FIELDS,
        input_modalities=("text", "image"),
        max_images=3,
        version="toy 1.2.1",
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
