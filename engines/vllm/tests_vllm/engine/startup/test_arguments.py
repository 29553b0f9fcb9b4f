"""Arguments of AsyncEngineArgs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core.manifest import EngineLoadError, KvCacheSettings, LoraSettings, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls_vllm.arguments import engine_args
from openai_bls_vllm.record import VllmRecord
from openai_bls_vllm.startup import arguments
from tests_vllm.contracts.tables import VERSIONS
from tests_vllm.engine.vllm_support import manifest


def made(
    of: Manifest | None = None, settings: EngineSettings | None = None, version: str = "0.32.0", **more: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {"on_cpu": False, "tokenizer": None} | more
    return arguments.engine_args(
        Path("/m"),
        of or manifest(),
        settings or EngineSettings(),
        fields=engine_args.recorded(version),
        version=version,
        **given,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("on_cpu", [False, True])
def test_every_version_takes_them(version: str, on_cpu: bool) -> None:
    settings = EngineSettings(enable_kv_cache_reuse=False, enable_chunked_context=True)
    lora = LoraSettings(max_loras=2, max_lora_rank=9)
    found = made(manifest(lora=lora), settings, version, on_cpu=on_cpu, tokenizer=Path("/t"))
    assert found["max_lora_rank"] == 16
    assert (found["enable_prefix_caching"], found["enable_chunked_prefill"]) == (False, True)
    assert found["tokenizer"] == "/t"


def test_a_cpu_computes_in_float32_and_keeps_a_lora_slot_empty() -> None:
    lora = LoraSettings(max_loras=2, max_lora_rank=8)
    assert made(manifest(lora=lora), on_cpu=True)["max_loras"] == 3
    assert made(manifest(lora=lora))["max_loras"] == 2
    assert made(on_cpu=True)["dtype"] == "float32"
    assert made(manifest(dtype="bfloat16"), on_cpu=True)["dtype"] == "bfloat16"
    assert made()["dtype"] == "auto"


def test_extra_arguments_go_before_defaults() -> None:
    record = VllmRecord(version="0.32.0", extra_engine_args={"enforce_eager": False, "gpu_memory_utilization": 0.5})
    found = made(manifest(record=record.fields()), on_cpu=True)
    assert (found["enforce_eager"], found["gpu_memory_utilization"]) == (False, 0.5)
    record = msgspec.structs.replace(record, extra_engine_args={"max_num_seqs": 3})
    with pytest.raises(EngineLoadError, match="max_num_seqs"):
        made(manifest(record=record.fields()))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("kv_cache_free_gpu_mem_fraction", 0.5),
        ("max_tokens_in_paged_kv_cache", 100),
        ("kv_cache_host_memory_bytes", 100),
        ("max_attention_window_size", "8"),
        ("batch_scheduler_policy", "guaranteed_no_evict"),
        ("guided_decoding_backend", "xgrammar"),
    ],
)
def test_settings_without_an_equal_meaning_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(EngineLoadError, match=setting):
        made(settings=EngineSettings(**{setting: value}))


def test_kv_events_are_an_argument_of_vllm() -> None:
    settings = EngineSettings(kv_events_endpoint="tcp://*:5557", kv_events_topic="kv@pod@demo")
    assert made(settings=settings)["kv_events_config"] == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": None,
        "topic": "kv@pod@demo",
    }
    assert "kv_events_config" not in made()
    with pytest.raises(EngineLoadError, match=r"kv_events_topic .*kv_events_endpoint"):
        made(settings=EngineSettings(kv_events_topic="kv@pod@demo"))
    record = VllmRecord(version="0.32.0", extra_engine_args={"kv_events_config": {"endpoint": "tcp://*:1"}})
    with pytest.raises(EngineLoadError, match="kv_events_config"):
        made(manifest(record=record.fields()), settings)


def test_settings_that_vllm_does_anyway_pass() -> None:
    made(settings=EngineSettings(batch_scheduler_policy="max_utilization"))
    made(settings=EngineSettings(guided_decoding_backend="llguidance"))


@pytest.mark.parametrize("changes", [{"kv_cache": KvCacheSettings(max_tokens_in_kv_cache=9)}])
def test_options_of_the_embedded_engine_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(EngineLoadError, match="embedded"):
        made(manifest(**changes))


def test_images_are_bounded_by_the_build() -> None:
    assert made(manifest(max_images=3))["limit_mm_per_prompt"] == {"image": 3, "video": 0, "audio": 0}
    assert "limit_mm_per_prompt" not in made()
    record = VllmRecord(version="0.32.0", extra_engine_args={"limit_mm_per_prompt": {"image": 9}})
    assert made(manifest(record=record.fields()))["limit_mm_per_prompt"] == {"image": 9}
    with pytest.raises(EngineLoadError, match="limit_mm_per_prompt"):
        made(manifest(max_images=3, record=record.fields()))


@pytest.mark.parametrize("version", VERSIONS)
def test_vllm_is_to_tell_of_drafts_and_may_have_a_queue_by_priority(version: str) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    extra = {"speculative_config": drafts, "scheduling_policy": "priority", "data_parallel_size": 2}
    found = made(manifest(record=VllmRecord(version=version, extra_engine_args=extra).fields()), version=version)
    assert found.items() >= extra.items()
    told = "summary" if version in ("0.29", "0.30", "0.31", "0.32", "0.33") else None
    assert found.get("per_request_spec_decode_metrics") == told
    assert "per_request_spec_decode_metrics" not in made(version=version)
