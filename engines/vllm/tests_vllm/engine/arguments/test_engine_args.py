"""`--extra-engine-args`: names and types by the recorded versions, and what may not be given."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest
import yaml

from openai_bls.core.manifest import EngineLoadError
from openai_bls_vllm.arguments import engine_args
from openai_bls_vllm.arguments.engine_args_refused import refusal, refused_names
from tests.paths import ROOT
from tests_vllm.contracts.tables import VERSIONS

NEWEST = VERSIONS[-1]


def check(values: dict[Any, Any], version: str = NEWEST) -> dict[str, Any]:
    return engine_args.check(values, engine_args.recorded(version), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_may_be_given(version: str) -> None:
    values = {
        "gpu-memory-utilization": 0.8,
        "--max-num-batched-tokens": 4096,
        "kv_cache_dtype": "fp8",
        "enforce-eager": True,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
        "cpu_offload_gb": 2,
        "cudagraph_capture_sizes": [1, 2],
        "limit_mm_per_prompt": {"image": 0},
        "compilation_config": {"level": 0},
        "block_size": None,
        "attention_backend": "FLASH_ATTN",
        "load_format": "fastsafetensors",
        "distributed_executor_backend": "ray",
        "hf_overrides": {"rope_theta": 1.0},
    }
    assert check(values, version) == {name.lstrip("-").replace("-", "_"): value for name, value in values.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_on_the_page_may_be_given(version: str) -> None:
    """Offloading to the host's memory, LMCache and KV events among them."""
    page = (ROOT / "engines" / "vllm" / "docs" / "vllm.md").read_text(encoding="utf-8")
    files = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert {"kv-offloading-size", "kv-transfer-config", "kv-events-config"} <= {name for one in files for name in one}
    for values in files:
        assert list(check(values, version).values()) == list(values.values())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"gpu_memory_utilisation": 0.8}, "gpu_memory_utilisation.* gpu_memory_utilization"),
        ({"zzzz": 1}, "zzzz, .*--extra-engine-args"),
        ({"block_size": "16"}, "block_size in --extra-engine-args .* int or null, not '16'"),
        ({"enforce_eager": 1}, "enforce_eager .* bool, not 1"),
        ({"seed": True}, "seed .* int, not True"),
        ({"optimization_level": 1, "optimization-level": 1}, "optimization_level twice"),
        ({"moe_backend": "fp9"}, "moe_backend .* 'auto' or 'triton' .* not 'fp9'"),
        ({"compilation_config": "O3"}, "compilation_config .* dict"),
        ({"cudagraph_capture_sizes": 4}, "cudagraph_capture_sizes .* list or null"),
        ({1: 2}, "--extra-engine-args: .* 1$"),
        ({"model": "x"}, " model: .*--model"),
        ({"tensor-parallel-size": 2}, " tensor-parallel-size: .*--tp-size"),
        ({"max_num_seqs": 2}, " max_num_seqs: .*--max-batch-size"),
        ({"enable_prefix_caching": True}, " enable_prefix_caching: .*--enable-kv-cache-reuse"),
        ({"skip_tokenizer_init": True}, " skip_tokenizer_init: "),
        ({"logits_processors": []}, " logits_processors: "),
        ({"reasoning_parser": "x"}, " reasoning_parser: "),
        ({"structured_outputs_config": {}}, " structured_outputs_config: "),
        ({"api_key": "k"}, " api_key: "),
        ({"port": 80}, " port: "),
        ({"disable_log_requests": True}, " disable_log_requests: "),
        ({"runner": "pooling"}, " runner: .*--task"),
        ({"pooler_config": {}}, " pooler_config: "),
        ({"mm_processor_kwargs": {}}, " mm_processor_kwargs: "),
        ({"load_format": "dummy"}, " load_format: .*dummy"),
        ({"distributed_executor_backend": "external_launcher"}, " distributed_executor_backend: "),
        ({"_api_process_count": 1}, " _api_process_count: "),
    ],
)
def test_what_is_refused(values: dict[Any, Any], says: str) -> None:
    with pytest.raises(EngineLoadError, match=says):
        check(values)


def test_a_name_of_another_version() -> None:
    assert check({"calculate_kv_scales": True}, "0.27.1") == {"calculate_kv_scales": True}
    with pytest.raises(EngineLoadError, match=r"0\.28 .*calculate_kv_scales"):
        check({"calculate_kv_scales": True}, "0.28")


def test_refusals_that_are_fields_are_known_in_some_version() -> None:
    """A name that no version has would be a slip, unless it is an option of vLLM's server."""
    fields = {name for version in VERSIONS for name in engine_args.recorded(version)}
    elsewhere = {name for name in refused_names() - fields if "vLLM's server" not in str(refusal(name, None))}
    assert elsewhere == {
        *("chat_template", "chat_template_content_format", "disable_log_requests", "enable_auto_tool_choice"),
        *("guided_decoding_backend", "max_log_len", "tool_call_parser"),
    }


@pytest.mark.parametrize(("version", "like"), [("0.20.0", "0.24"), ("0.26.1rc1+cpu", "0.26"), ("0.99", NEWEST)])
def test_a_version_that_is_not_recorded_has_the_nearest_one(version: str, like: str) -> None:
    assert engine_args.recorded(version) == engine_args.recorded(like)


def test_names_that_an_interpreter_tells() -> None:
    assert engine_args.named(["seed", "brand_new"], "0.33.0") == {"seed": "int", "brand_new": "*"}


class Level(enum.IntEnum):
    O1 = 1


@dataclasses.dataclass
class Inner:
    x: int = 0


@dataclasses.dataclass
class Installed:
    a: int | None = None
    b: Literal["x", "y"] | str = "x"
    c: Inner = dataclasses.field(default_factory=Inner)
    d: dict[str, Any] | Callable[[int], int] | None = None
    e: list[str] | None = None
    f: Level | None = None
    _own: int = 0


def test_the_installed_class() -> None:
    assert engine_args.installed(Installed) == {
        "a": "int|None",
        "b": "'x'|'y'|str",
        "c": "dict",
        "d": "dict|None",
        "e": "list|None",
        "f": "*|None",
    }
