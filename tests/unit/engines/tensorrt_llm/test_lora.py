"""Adapters that a loaded TensorRT-LLM engine takes, and those that it would not apply in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import LoraError
from openai_bls.engines.tensorrt_llm import lora
from tests.unit.builder.tensorrt_llm.build_support import make_adapter

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
        lora.read(folder, tmp_path, MODULES, max_rank=8)
    assert said in str(caught.value)


def test_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4, "num_hidden_layers": 1}))
    found = lora.read(make_adapter(tmp_path / "adapter", use_rslora=True), tmp_path, MODULES, max_rank=8)
    assert found.rank == 8
