"""Checkpoints that come quantized: what each flow of each version takes, and what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.builder.checkpoint.config import read_config
from openai_bls.builder.checkpoint.quantized import CHECKPOINT_FORMS, StoredAs, plain_under, quantization_of, stored_as
from openai_bls_tensorrt_llm.installed.interface import Flow, KvCacheDtype
from openai_bls_tensorrt_llm.recipe.plan.quantized import checkpoint_refusal, kv_cache_refusal


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "told_by": "hf_quant_config.json", **more}


TOLD: dict[str, dict[str, Any]] = {
    "ModelOpt FP8": modelopt("FP8"),
    "ModelOpt NVFP4": modelopt("NVFP4"),
    "ModelOpt W4A16_AWQ": modelopt("W4A16_AWQ"),
    "ModelOpt W4A8_AWQ": modelopt("W4A8_AWQ"),
    "ModelOpt FP8_BLOCK_SCALES": modelopt("fp8_pb_wo"),
    "ModelOpt FP8_PER_CHANNEL_PER_TOKEN": modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
    "ModelOpt MIXED_PRECISION": modelopt("MIXED_PRECISION"),
    "fp8_block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "mxfp4": {"quant_method": "mxfp4"},
    "fp8": {"quant_method": "fp8"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "config_groups": {}},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "awq": {"quant_method": "awq", "bits": 4},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}
# What `_update_from_hf_quant_config` of 1.0 to 1.2 lets pass, whichever flow.
READ = {name for name in TOLD if name.startswith("ModelOpt ")} | {"fp8_block", "mxfp4"}


def stored(told: dict[str, Any]) -> StoredAs:
    found = stored_as({"quantization_config": told})
    assert found is not None
    return found


def test_forms_are_told_apart() -> None:
    assert {name: stored(told).form for name, told in TOLD.items()} == {name: name for name in CHECKPOINT_FORMS}
    assert stored_as({}) is None
    assert stored_as({"quantization_config": None}) is None


def test_names_of_quantizations() -> None:
    """Those of `--quant` where there is one, else the checkpoint's own."""
    told = TOLD | {
        "8 bits": {"quant_method": "gptq", "bits": 8},
        "3 bits": {"quant_method": "gptq", "bits": 3},
        "awq of 8 bits": {"quant_method": "awq", "w_bit": 8},
    }
    names = {name: quantization_of({"quantization_config": value}) for name, value in told.items()}
    assert list(names.values()) == [
        "fp8", "nvfp4", "awq", "w4a8_awq", "fp8_block", "fp8_rowwise", "MIXED_PRECISION", "fp8_block", "mxfp4", "fp8",
        "compressed-tensors", "gptq", "awq", "bitsandbytes", "int8_gptq", "gptq with 3 bits", "awq with 8 bits",
    ]  # fmt: skip
    assert quantization_of({}) == quantization_of({"quantization_config": "fp8"}) == ""


def test_weights_that_are_plain() -> None:
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    plain = {"a.weight": ("BF16", (2, 2)), "b.bias": ("F32", (2,))}
    assert plain_under(fp8, plain) == "fp8"
    assert plain_under({"text_config": fp8}, plain) == "fp8"
    assert not plain_under({}, plain)
    assert not plain_under(fp8, {})
    assert not plain_under(fp8, {**plain, "c.weight": ("F8_E4M3", (2, 2))})
    assert not plain_under(fp8, {**plain, "c.weight_scale": ("F32", (2,))})


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("version", [(1, 0), (1, 2)])
def test_what_is_taken(name: str, version: tuple[int, int]) -> None:
    """Engines of ModelOpt's FP8 and NVFP4; checkpoints of all that the loader reads."""
    flows: tuple[Flow, Flow] = ("tensorrt", "pytorch")
    found = {flow: checkpoint_refusal(stored(TOLD[name]), flow, version) for flow in flows}
    assert (found["tensorrt"] is None) == (name in ("ModelOpt FP8", "ModelOpt NVFP4"))
    assert (found["pytorch"] is None) == (name in READ)


@pytest.mark.parametrize(
    ("told", "flow", "version", "says"),
    [
        (TOLD["gptq"], "tensorrt", (1, 2), "use the original checkpoint with --quant int4_weight_only"),
        (TOLD["awq"], "pytorch", (1, 1), "use the original checkpoint, or one that"),
        (TOLD["fp8_block"], "tensorrt", (1, 2), "use --flow pytorch, or the original checkpoint with --quant fp8"),
        (TOLD["fp8_block"], "tensorrt", (0, 20), "use the original checkpoint with --quant fp8"),
        (TOLD["compressed-tensors"], "pytorch", (1, 2), "use TensorRT-LLM 1.3 or later, the original checkpoint, or"),
        ({"quant_method": "hqq"}, "pytorch", (1, 2), "quantized already, as hqq"),
        ({"bits": 4}, "tensorrt", (1, 2), "quantized already, as an unnamed form"),
        ({"quant_algo": "NVFP4"}, "pytorch", (1, 0), "hf_quant_config.json, which is missing"),
    ],
)
def test_sentences(told: dict[str, Any], flow: Flow, version: tuple[int, int], says: str) -> None:
    assert says in str(checkpoint_refusal(stored(told), flow, version))


def test_later_versions_read_more() -> None:
    for name in ("fp8", "compressed-tensors"):
        assert checkpoint_refusal(stored(TOLD[name]), "pytorch", (1, 3)) is None
    inline = stored({"quant_method": "modelopt", "quant_algo": "FP8"})
    assert checkpoint_refusal(inline, "pytorch", (1, 3)) is None


@pytest.mark.parametrize(
    ("cache", "asked", "says"),
    [
        (None, "auto", ""),
        (None, "fp8", ""),
        (None, "int8", "--kv-cache-dtype int8 needs scales"),
        ("FP8", "auto", ""),
        ("FP8", "fp8", ""),
        ("none", "fp8", ""),
        ("FP8", "int8", "quantized for a KV cache in fp8: leave --kv-cache-dtype int8 out"),
        ("NVFP4", "fp8", "quantized for a KV cache in nvfp4"),
    ],
)
def test_kv_caches(cache: str | None, asked: KvCacheDtype, says: str) -> None:
    found = kv_cache_refusal(stored(modelopt("FP8", kv_cache_quant_algo=cache)), asked)
    assert says in (found or "")
    assert bool(found) == bool(says)


def test_modelopts_file_goes_first(tmp_path: Path) -> None:
    """As TensorRT-LLM has it."""
    inline = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": inline}))
    assert stored_as(read_config(tmp_path)) == StoredAs("ModelOpt NVFP4", "", inline=True)
    told = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    assert stored_as(read_config(tmp_path)) == StoredAs("ModelOpt FP8", "fp8")
