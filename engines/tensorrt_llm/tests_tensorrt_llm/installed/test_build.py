"""Builds by TensorRT-LLM's LLM API: the options that it is given, and those that are refused before."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.manifest import EngineLoadError
from tests_tensorrt_llm.engine.fake_support import VERSIONS
from tests_tensorrt_llm.installed.world import World


@pytest.mark.parametrize("version", VERSIONS)
def test_every_option_of_a_build(version: str, world: World, tmp_path: Path) -> None:
    data = tmp_path / "calibration"
    data.mkdir()
    spec = world.spec(
        max_beam_width=2,
        dtype="float16",
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        workers=4,
        quant_algorithm="W4A16_AWQ",
        kv_cache_dtype="int8",
        calib_dataset=str(data),
        calib_size=16,
        calib_max_seq_length=128,
        plugins={
            "gemm_plugin": "float16",
            "use_paged_context_fmha": "enable",
            "tokens_per_block": "64",
            "moe_plugin": "disable",
        },
        multiple_profiles=True,
        gather_logits=True,
        trust_remote_code=True,
    )
    with world.api(version) as installed:
        installed.build(spec)
    (call,) = world.calls("LLM.tensorrt")
    config = json.loads((spec.output / "config.json").read_text())
    limits = {"max_batch_size": 4, "max_input_len": 16, "max_seq_len": 32, "max_num_tokens": 64, "max_beam_width": 2}
    assert config["build_config"] == config["build_config"] | limits | {"gather_generation_logits": True}
    plugins = config["build_config"]["plugin_config"]
    assert plugins == plugins | {
        "gemm_plugin": "float16",
        "use_paged_context_fmha": True,
        "tokens_per_block": 64,
        "moe_plugin": None,
        "multiple_profiles": True,
    }
    assert config["pretrained_config"]["quantization"] == {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "INT8"}
    assert call["calib_config"] == call["calib_config"] | {
        "calib_dataset": str(data),
        "calib_batches": 16,
        "calib_batch_size": 1,
        "calib_max_seq_length": 128,
    }
    assert call["workspace"] == str(spec.workspace)
    assert call["kv_cache_config"]["max_tokens"] == 64
    assert call["gather_generation_logits"] is True
    assert call["trust_remote_code"] is True
    assert (call["tensor_parallel_size"], call["pipeline_parallel_size"], call["dtype"]) == (2, 2, "float16")
    assert [path.name for path in sorted(spec.output.glob("rank*"))] == [f"rank{rank}.engine" for rank in range(4)]
    assert len(world.calls("shutdown")) == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"workers": 3, "tensor_parallel_size": 2}, "--workers 3 .* 2 ranks"),
        ({"plugins": {"use_custom_all_reduce": "enable"}}, "plugin option use_custom_all_reduce"),
        ({"plugins": {"model_fields": "x"}}, "plugin option model_fields"),
        ({"plugins": {"dtype": "float16"}}, "plugin option dtype"),
        ({"plugins": {"gemm_plugin": "int2"}}, "plugin option gemm_plugin: 'int2'"),
        ({"plugins": {"context_fmha": "auto"}}, "plugin option context_fmha: 'auto' .* enable or disable"),
        ({"plugins": {"tokens_per_block": "many"}}, "plugin option tokens_per_block: 'many'"),
    ],
)
@pytest.mark.parametrize("version", ["1.1.0", "1.2.1"])
def test_what_cannot_be_built(version: str, values: dict[str, Any], told: str, world: World) -> None:
    with world.api(version) as installed, pytest.raises(EngineLoadError, match=told):
        installed.build(world.spec(**values))
    assert world.calls("LLM.tensorrt") == []


def test_an_engine_is_shut_down_when_it_cannot_be_saved(world: World) -> None:
    with world.api(fail="save:disk") as installed, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        installed.build(world.spec())
    assert len(world.calls("shutdown")) == 1
