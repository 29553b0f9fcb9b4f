"""Adapters that a loaded TensorRT-LLM engine takes, and those that it would not apply in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import LoraError
from openai_bls.engines.adapters import read_adapter
from openai_bls_tensorrt_llm import lora
from openai_bls_tensorrt_llm.installed.interface import Version
from openai_bls_tensorrt_llm.loaded_adapters import AdapterNumbers
from tests.unit.builder.repositories import make_adapter

MODULES = ("attn_q", "mlp_4h_to_h")


@pytest.mark.parametrize(
    ("adapter", "config", "said"),
    [
        ({"rank": 9}, {}, "the adapter's rank is 9: this engine takes up to 8"),
        ({"module": "self_attn.o_proj"}, {}, "changes o_proj, and this engine was set up for q_proj, down_proj"),
        ({"module": "lm_head"}, {}, "changes lm_head"),
        ({"alpha_pattern": {"q_proj": 4}}, {}, "alpha_pattern in adapter_config.json is not supported by TensorRT-LLM"),
        ({"use_dora": True}, {}, "use_dora in adapter_config.json is not supported"),
        ({}, {"hidden_size": 8}, "of another model: model.layers.0.self_attn.q_proj is 4 wide there, and 8 here"),
        ({"module": "mlp.down_proj"}, {"text_config": {"hidden_size": 8}}, "down_proj is 4 wide there, and 8 here"),
        ({}, {"num_hidden_layers": 0}, "and this one has 0 layers"),
    ],
)
def test_refused(tmp_path: Path, adapter: dict[str, Any], config: dict[str, Any], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4, "num_hidden_layers": 2} | config))
    folder = make_adapter(tmp_path / "adapter", **adapter)
    with pytest.raises(LoraError) as caught:
        lora.read(folder, tmp_path, MODULES, max_rank=8, version=Version(1, 2, 1))
    assert said in str(caught.value)


def test_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4, "num_hidden_layers": 1}))
    found = lora.read(
        make_adapter(tmp_path / "adapter", use_rslora=True), tmp_path, MODULES, max_rank=8, version=Version(1, 2, 1)
    )
    assert found.rank == 8


@pytest.mark.parametrize(
    ("version", "head_dim", "refused"), [("1.2.1", 4, True), ("1.2.1", 2, False), ("1.4", 4, False)]
)
def test_a_module_that_the_release_sizes_wrongly(tmp_path: Path, version: str, head_dim: int, refused: bool) -> None:
    """Qwen3 0.6B and its like: more in the heads than in the model. At the build, and when it is loaded later."""
    config = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": head_dim}
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder = make_adapter(tmp_path / "adapter", module="self_attn.o_proj")
    said = []
    for take in (
        lambda: lora.target_modules({"french": read_adapter(folder)}, config, Version.parse(version)),
        lambda: lora.read(folder, tmp_path, ("attn_dense",), 8, Version.parse(version)),
    ):
        try:
            take()
        except LoraError as error:
            said.append(str(error))
    assert len(said) == 2 * refused
    for sentence in said:
        assert "o_proj, which TensorRT-LLM 1.2.1 sizes 4 x 4 " in sentence


def test_names_of_fused_modules(tmp_path: Path) -> None:
    fused = {
        module: {"x": read_adapter(make_adapter(tmp_path / module, module=module))}
        for module in ("mlp.gate_up_proj", "self_attn.qkv_proj")
    }
    assert lora.target_modules(fused["mlp.gate_up_proj"], {}, Version(1, 2, 1)) == ("mlp_gate_up",)
    # Left to TensorRT-LLM, which may know it.
    assert lora.target_modules(fused["self_attn.qkv_proj"], {}, Version(1, 2, 1)) == ()
    assert lora.target_modules(fused["self_attn.qkv_proj"], {}, Version(1, 3)) == ("attn_qkv",)


def test_an_unchanged_folder_keeps_its_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TensorRT-LLM frees no adapter's weights: what is new is said."""
    first, second = make_adapter(tmp_path / "first"), make_adapter(tmp_path / "second")
    numbers = AdapterNumbers([first])
    assert (numbers.of(first, 8), numbers.of(second, 1 << 20), numbers.of(second, 1 << 20)) == (1, 2, 2)
    assert [record.message.count("about 1.0 MiB") for record in caplog.records] == [1]
    (second / "adapter_config.json").write_text("{ }")
    assert numbers.of(second, 1 << 20) == 3
    assert "since the start 2.0 MiB" in caplog.text
