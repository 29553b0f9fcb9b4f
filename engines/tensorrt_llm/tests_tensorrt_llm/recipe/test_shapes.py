"""Shapes from config.json files, against published sizes, the bytes on disk and the configuration of transformers."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.builder.checkpoint.config import read_config
from openai_bls.core.manifest import BuildError, EngineSetupError
from openai_bls_tensorrt_llm.recipe.model.shapes import shape_of
from tests.paths import DEMO
from tests_tensorrt_llm.recipe import published_models
from tests_tensorrt_llm.recipe.published_models import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    shape = published_models.shape(name)
    assert shape.parameters.total == PUBLISHED[name].parameters
    assert shape.kv_bytes_per_token(2) == PUBLISHED[name].kv_kib * 1024
    assert shape.kv_bytes_per_token(1) == PUBLISHED[name].kv_kib * 512


# Of the model's page or paper: billions of parameters, and bytes of KV cache per token at 2 bytes per element.
@pytest.mark.parametrize(
    ("model_type", "architecture", "billions", "kv_bytes"),
    [
        ("deepseek_v3", "DeepseekV3ForCausalLM", 671.0, 61 * (512 + 64) * 2),
        ("gpt_oss", "GptOssForCausalLM", 116.8, 36 * 2 * 8 * 64 * 2),
        # Llama 4 Scout: 107.8 of the language model; its class has the image encoder too.
        ("llama4", "Llama4ForConditionalGeneration", 108.2, 48 * 2 * 8 * 128 * 2),
        ("llama4", "SomethingElse", 107.8, 48 * 2 * 8 * 128 * 2),
        # Three of four layers are linear attention, without a KV cache.
        ("qwen3_next", "Qwen3NextForCausalLM", 79.7, 12 * 2 * 2 * 256 * 2),
        ("falcon", "FalconForCausalLM", 6.9, 32 * 2 * 64 * 2),
    ],
)
def test_architectures_outside_the_table(model_type: str, architecture: str, billions: float, kv_bytes: int) -> None:
    config = transformers.AutoConfig.for_model(model_type).to_dict() | {"architectures": [architecture]}
    shape = shape_of(json.loads(json.dumps(config, default=str)))
    assert shape.architecture == architecture
    assert round(shape.parameters.total / 1e9, 1) == billions
    assert shape.kv_bytes_per_token(2) == kv_bytes


def test_the_demo_checkpoint_exactly() -> None:
    with (DEMO / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    held = {name: int(torch.Size(entry["shape"]).numel()) for name, entry in header.items()}
    counts = shape_of(read_config(DEMO)).parameters
    assert counts.total == sum(held.values())
    assert counts.embedding == held["model.embed_tokens.weight"]
    assert counts.linear == sum(n for name, n in held.items() if "_proj.weight" in name)
    assert counts.other == sum(n for name, n in held.items() if "norm" in name or name.endswith("bias"))
    assert (counts.lm_head, counts.router) == (0, 0)


def test_what_the_files_call_differently() -> None:
    qwen = published_models.shape("Qwen-7B-Chat")
    assert (qwen.intermediate_size, qwen.max_position_embeddings, qwen.head_dim) == (11008, 8192, 128)
    glm = published_models.shape("chatglm3-6b")
    assert (glm.layers, glm.kv_heads, glm.max_position_embeddings) == (28, 2, 8192)
    assert published_models.shape("Baichuan2-13B-Chat").max_position_embeddings == 4096
    # Present, but off.
    assert published_models.shape("Qwen2.5-7B-Instruct").sliding_window is None
    assert published_models.shape("Mistral-7B-v0.1").sliding_window == 4096
    linear = shape_of(published_models.config("chatglm3-6b") | {"add_bias_linear": True}).parameters
    per_layer = (32 * 128 + 2 * 2 * 128) + 4096 + 2 * 13696 + 4096
    assert linear.other == 28 * (per_layer + 2 * 4096) + 4096


def test_experts() -> None:
    qwen = published_models.shape("Qwen1.5-MoE-A2.7B")
    counts = qwen.parameters
    assert (counts.experts, counts.expert_width) == (60, 1408)
    assert counts.router == 24 * 2048 * (60 + 1)
    assert counts.expert_linear == 24 * 60 * 3 * 2048 * 1408
    mixtral = published_models.shape("Mixtral-8x7B-v0.1")
    assert (mixtral.parameters.experts, mixtral.parameters.expert_width) == (8, 14336)
    config = published_models.config("Qwen3-30B-A3B")
    assert shape_of(config).dense_layers == 0
    assert shape_of(config | {"mlp_only_layers": [0, 5]}).dense_layers == 2
    assert shape_of(config | {"decoder_sparse_step": 2}).dense_layers == 24


def test_modelopt_tells_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published_models.config("Llama-3.1-8B")))
    assert shape_of(read_config(tmp_path)).quantization == ""
    (tmp_path / "hf_quant_config.json").write_text('{"producer": {}, "quantization": {"quant_algo": "FP8"}}')
    assert shape_of(read_config(tmp_path)).quantization == "fp8"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Llama-2-7b-hf", "hidden_size"),
        ("Baichuan2-7B-Chat", "num_attention_heads"),
        ("chatglm3-6b", "ffn_hidden_size"),
        ("chatglm3-6b", "multi_query_group_num"),
        ("Qwen-7B-Chat", "intermediate_size"),
    ],
)
def test_a_missing_field_is_named(name: str, field: str) -> None:
    config = published_models.config(name)
    del config[field]
    with pytest.raises(BuildError, match=f" {field}"):
        shape_of(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "no_such"}, "has no model_type 'no_such'"),
        ({"model_type": ["qwen2"]}, "has no model_type"),
        ({"model_type": "qwen2", "hidden_size": "many"}, "transformers makes no model of this config.json: "),
        ({"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}, "no usable hidden_size"),
        (
            transformers.AutoConfig.for_model("mamba2").to_dict() | {"architectures": ["Mamba2ForCausalLM"]},
            "Mamba2ForCausalLM is not worked out: it has no attention layers",
        ),
    ],
)
def test_models_that_cannot_be_counted(config: dict[str, Any], said: str) -> None:
    with pytest.raises(BuildError) as caught:
        shape_of(config)
    assert said in str(caught.value)


def test_code_of_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemExit")
    auto_map = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config = published_models.config("Llama-3.2-1B") | {"auto_map": auto_map, "_name_or_path": str(tmp_path)}
    assert shape_of(config).parameters == published_models.shape("Llama-3.2-1B").parameters


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.text(max_size=3), st.just([]))
JSON = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2))
FIELDS = ("rope_scaling", "quantization_config", "mlp_only_layers", "architectures", "sliding_window", "head_dim")
SMALL = ("chatglm3-6b", "Qwen2-0.5B", "Llama-3.2-1B", "gemma-3-1b-it", "Qwen1.5-MoE-A2.7B", "Qwen-7B-Chat")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_strange_files_are_read_or_refused(data: st.DataObject) -> None:
    """Whatever a field holds: a shape that can be counted, or the one error that has a sentence."""
    config = published_models.config(data.draw(st.sampled_from(SMALL)))
    for field in data.draw(st.lists(st.sampled_from([*config, *FIELDS]), min_size=1, max_size=3)):
        config[field] = data.draw(JSON)
    said = ""
    total = 0
    try:
        total = shape_of(config).parameters.total
    except BuildError as error:
        said = str(error)
    assert total > 0 or "\n" not in said != ""


def test_unreadable_files(tmp_path: Path) -> None:
    for text, said in (("", r"no config\.json"), ("{", r"config\.json: "), ("[]", "JSON object")):
        if text:
            (tmp_path / "config.json").write_text(text)
        with pytest.raises(EngineSetupError, match=said):
            read_config(tmp_path)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BuildError, match="torch "):
        shape_of(published_models.config("Qwen3-8B"))


def test_rope_scaling_extends_the_context() -> None:
    """By YaRN's recipe, which leaves max_position_embeddings as it was."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    config = transformers.AutoConfig.for_model("qwen2").to_dict() | {"architectures": ["Qwen2ForCausalLM"]}
    config |= {"max_position_embeddings": 512, "rope_parameters": None, "rope_scaling": scaling}
    assert shape_of(json.loads(json.dumps(config, default=str))).max_position_embeddings == 2048
