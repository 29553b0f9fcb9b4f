"""Engines with adapters: what is recorded of them, and those that TensorRT-LLM would not apply in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.builder.options.lora import LoraOptions
from openai_bls.core.manifest import LoraSettings
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from tests.unit.builder.repositories import make_adapter
from tests_tensorrt_llm.recipe.build_support import Bench

PYTORCH = TensorRtLlmOptions(flow="pytorch")


def test_adapters(bench: Bench, tmp_path: Path) -> None:
    adapters = {"french": make_adapter(tmp_path / "a", 8), "legal": make_adapter(tmp_path / "b", 16, "mlp.up_proj")}
    lora = LoraOptions(adapters)
    found = bench.run(lora=lora).lora
    modules = ("attn_k", "attn_q", "attn_v", "mlp_gate")
    assert found == LoraSettings({"french": "lora/french", "legal": "lora/legal"}, 2, 16, modules)
    for folder in found.adapters.values():
        held = {path.name for path in (bench.folder / folder).iterdir()}
        assert held == {"adapter_config.json", "adapter_model.safetensors"}
    (asked,) = bench.machine.builds()
    config = asked["build_config"]
    assert config["plugin_config"]["lora_plugin"] == "auto"
    assert config["lora_config"]["lora_target_modules"] == list(modules)
    bench.run(lora=lora)
    make_adapter(tmp_path / "b", 15, "mlp.up_proj")
    bench.run(lora=lora)
    assert len(bench.machine.builds()) == 2


@pytest.mark.parametrize(
    ("options", "changes", "said"),
    [
        ({"max_lora_rank": 4}, {}, "--max-lora-rank 4"),
        ({"max_loras": 1}, {}, "--max-loras 1"),
        ({}, {"modules_to_save": ["lm_head"]}, "--lora-dir one: modules_to_save"),
        ({}, {"alpha_pattern": {"q_proj": 1}}, "--lora-dir: alpha_pattern"),
        ({}, {"module": "attn.c_attn"}, "--lora-dir: the adapter one changes c_attn"),
    ],
)
def test_adapters_that_tensorrt_llm_would_not_apply_in_full(
    bench: Bench, tmp_path: Path, options: dict[str, int], changes: dict[str, Any], said: str
) -> None:
    adapters = {"one": make_adapter(tmp_path / "one", **changes), "other": make_adapter(tmp_path / "other")}
    assert bench.refusal(PYTORCH, lora=LoraOptions(adapters, **options)).startswith(said)


def test_a_single_adapter_of_other_modules_is_left_to_tensorrt_llm(bench: Bench, tmp_path: Path) -> None:
    adapters = {"one": make_adapter(tmp_path / "one", module="attn.c_attn")}
    assert bench.run(lora=LoraOptions(adapters)).lora.target_modules == ()
    assert "adapter one changes c_attn" in bench.refusal(lora=LoraOptions(adapters, max_loras=2))


def test_room_for_adapters(bench: Bench) -> None:
    room = LoraOptions(max_loras=3)
    found = bench.run(lora=room).lora
    assert (found.max_loras, found.max_lora_rank, len(found.target_modules)) == (3, 16, 7)
    said = bench.refusal(TensorRtLlmOptions(backend="cpp"), lora=room)
    assert said.startswith("--max-loras is for --backend python: ")


def test_names_of_adapters_that_are_taken(bench: Bench, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter")

    def named(adapter: str, **more: Any) -> dict[str, Any]:
        return {"lora": LoraOptions({adapter: folder}), **more}

    assert bench.refusal(PYTORCH, **named("tiny")).startswith("'tiny' is the engine's own name ")
    taken = "{!r} is a name of the engine in tensorrt_llm"
    # An alias of this engine.
    assert taken.format("openai_bls") in bench.refusal(PYTORCH, **named("openai_bls"))
    bench.run(PYTORCH, **named("french"))
    further = {"name": "small", "served_model_name": "small"}
    for name in ("french", "tiny", "openai_bls"):
        assert bench.refusal(PYTORCH, **named(name, **further)).startswith(taken.format(name))
    said = bench.refusal(PYTORCH, name="small", served_model_name="french")
    assert said.startswith(taken.format("french"))
    assert "--served-model-name" in said
    bench.run(PYTORCH, **named("german", **further))
    assert "in tensorrt_llm_small" in bench.refusal(PYTORCH, **named("german"))
    # Its own, again, and the name that its model had.
    bench.run(PYTORCH, **named("french"), force=True)
    bench.run(PYTORCH, **named("tiny"), served_model_name="other")
