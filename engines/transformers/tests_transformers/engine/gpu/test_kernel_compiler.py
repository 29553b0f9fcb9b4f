"""Kernels compiled ahead: every call is one that the kernels take, and none keeps a model from loading."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoConfig, GptOssConfig, MixtralConfig, Qwen3MoeConfig

from openai_bls.core.manifest import Manifest
from openai_bls_transformers.gpu import attention_kernels, kernel_compiler

CPU = torch.device("cpu")
MANIFEST = Manifest(
    engine="transformers", model_name="demo", max_model_len=200, max_batch_size=4, created=1, dtype="float16"
)


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernels, "processors", lambda device: 8)


def test_all_calls_are_valid(checkpoint: Path) -> None:
    calls = list(kernel_compiler._calls(checkpoint, MANIFEST, CPU))
    assert len(calls) > 10
    for call in calls:
        call()


def test_the_kernel_for_hopper_is_imported_before_threads_start(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "openai_bls_transformers.gpu.hopper_attention"
    monkeypatch.delitem(sys.modules, name, raising=False)
    list(kernel_compiler._calls(checkpoint, MANIFEST, CPU))
    assert name in sys.modules


def test_calls_for_experts_are_valid(checkpoint: Path) -> None:
    dense = AutoConfig.from_pretrained(checkpoint)
    assert not list(kernel_compiler._expert_calls(dense, torch.float16, CPU))
    mixtures = (
        Qwen3MoeConfig(hidden_size=32, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2),
        MixtralConfig(hidden_size=32, intermediate_size=16, num_local_experts=2, num_experts_per_tok=1),
        GptOssConfig(hidden_size=32, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2),
    )
    for config in mixtures:
        calls = list(kernel_compiler._expert_calls(config, torch.float16, CPU))
        assert len(calls) == 6
        for call in calls:
            call()


def test_weights_of_other_types_have_no_such_kernels(checkpoint: Path) -> None:
    assert not list(kernel_compiler._calls(checkpoint, msgspec.structs.replace(MANIFEST, dtype="float32"), CPU))
    assert not list(kernel_compiler._calls(checkpoint, msgspec.structs.replace(MANIFEST, record={"quant": "fp8"}), CPU))


def test_what_fails_is_left_to_those_who_need_it(tmp_path: Path, checkpoint: Path) -> None:
    with kernel_compiler.compiling(tmp_path, MANIFEST, CPU):
        pass

    def broken(device: torch.device) -> int:
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_kernels, "decode_attention", broken)
        with kernel_compiler.compiling(checkpoint, MANIFEST, CPU):
            pass
