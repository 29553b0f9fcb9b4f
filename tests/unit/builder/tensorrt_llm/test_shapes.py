"""Sizes worked out from config.json files, against what is published, what transformers builds and what is on disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.builder.tensorrt_llm.hf_config import read_config
from openai_bls.builder.tensorrt_llm.shapes import read_shape, shape_of
from openai_bls.core.manifest import EngineLoadError
from tests.unit.builder.tensorrt_llm import published_models
from tests.unit.builder.tensorrt_llm.published_models import NAMES, PUBLISHED

DEMO = Path(__file__).parents[4] / "demo" / "checkpoint"
# These have no class in transformers.
OWN_CODE = {"qwen", "baichuan", "chatglm"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    shape = published_models.shape(name)
    assert shape.parameters.total == PUBLISHED[name].parameters
    assert shape.kv_bytes_per_token(2) == PUBLISHED[name].kv_kib * 1024
    assert shape.kv_bytes_per_token(1) == PUBLISHED[name].kv_kib * 512


def test_every_file_is_compared() -> None:
    """The AWQ checkpoint has the weights of the one it was made from."""
    assert set(NAMES) - set(PUBLISHED) == {"Qwen2.5-7B-Instruct-AWQ"}


@pytest.mark.parametrize("name", [n for n in NAMES if published_models.config(n)["model_type"] not in OWN_CODE])
def test_as_many_as_transformers_makes(name: str) -> None:
    """transformers' own class, made from the same file without memory for its weights."""
    config = published_models.config(name) | {"num_hidden_layers": 3}
    config.pop("quantization_config", None)
    config.pop("auto_map", None)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    assert shape_of(config).parameters.total == sum(weight.numel() for weight in model.parameters())


def test_bytes_that_an_index_tells() -> None:
    """`total_size` of Qwen2.5-7B-Instruct's and ChatGLM2/3-6B's index files; the latter holds 32 rotary frequencies."""
    assert published_models.shape("Qwen2.5-7B-Instruct").parameters.total * 2 == 15_231_233_024
    assert published_models.shape("chatglm3-6b").parameters.total * 2 + 32 * 2 == 12_487_168_064


def test_baichuan_of_the_first_generation() -> None:
    """Its model cards tell the exact numbers; Baichuan2 differs by the vocabulary alone."""
    for name, parameters in (("Baichuan2-7B-Chat", 7_000_559_616), ("Baichuan2-13B-Chat", 13_264_901_120)):
        assert shape_of(published_models.config(name) | {"vocab_size": 64000}).parameters.total == parameters


def test_the_demo_checkpoint_exactly() -> None:
    with (DEMO / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    held = {name: int(torch.Size(entry["shape"]).numel()) for name, entry in header.items()}
    counts = read_shape(DEMO).parameters
    assert counts.total == sum(held.values())
    assert counts.embedding == held["model.embed_tokens.weight"]
    assert counts.linear == sum(n for name, n in held.items() if "_proj.weight" in name)
    assert counts.other == sum(n for name, n in held.items() if "norm" in name or name.endswith("bias"))
    assert (counts.lm_head, counts.router) == (0, 0)


def test_what_the_files_call_differently() -> None:
    qwen = published_models.shape("Qwen-7B-Chat")
    assert (qwen.intermediate_size, qwen.max_position_embeddings, qwen.head_dim) == (11008, 8192, 128)
    glm = published_models.shape("chatglm3-6b")
    assert (glm.layers, glm.kv_heads, glm.vocab_size, glm.max_position_embeddings) == (28, 2, 65024, 8192)
    assert glm.qkv_bias
    assert not glm.output_bias
    assert published_models.shape("Baichuan2-7B-Chat").position == "rope"
    baichuan = published_models.shape("Baichuan2-13B-Chat")
    assert (baichuan.position, baichuan.max_position_embeddings) == ("alibi", 4096)
    assert published_models.shape("Qwen3-8B").qk_norm
    # Told, but off.
    assert published_models.shape("Qwen2.5-7B-Instruct").sliding_window is None
    assert published_models.shape("Mistral-7B-v0.1").sliding_window == 4096


def test_experts() -> None:
    qwen = published_models.shape("Qwen1.5-MoE-A2.7B")
    assert (qwen.experts, qwen.experts_per_token, qwen.moe_intermediate_size) == (60, 4, 1408)
    assert qwen.shared_intermediate_size == 5632
    mixtral = published_models.shape("Mixtral-8x7B-v0.1")
    assert (mixtral.experts, mixtral.experts_per_token, mixtral.moe_intermediate_size) == (8, 2, 14336)
    config = published_models.config("Qwen3-30B-A3B")
    assert shape_of(config).dense_layers == 0
    assert shape_of(config | {"mlp_only_layers": [0, 5]}).dense_layers == 2
    assert shape_of(config | {"decoder_sparse_step": 2}).dense_layers == 24


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 32768),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 65536),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 32768),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, 32768),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_longest_sequence(changes: dict[str, Any], longest: int | None) -> None:
    config = published_models.config("Qwen2.5-7B-Instruct")
    assert shape_of(config | changes).max_position_embeddings == longest


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "int8_gptq"),
        ({"quant_method": "gptq", "bits": 3}, "gptq with 3 bits"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    ],
)
def test_quantised_checkpoints(told: dict[str, Any], name: str) -> None:
    config = published_models.config("Qwen2.5-7B-Instruct") | {"quantization_config": told}
    assert shape_of(config).quantization == name


def test_modelopt_tells_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published_models.config("Llama-3.1-8B")))
    assert read_shape(tmp_path).quantization == ""
    (tmp_path / "hf_quant_config.json").write_text('{"producer": {}, "quantization": {"quant_algo": "FP8"}}')
    assert read_shape(tmp_path).quantization == "fp8"
    assert read_config(tmp_path)["quantization_config"]["quant_method"] == "modelopt"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Llama-2-7b-hf", "num_hidden_layers"),
        ("Llama-2-7b-hf", "hidden_size"),
        ("Qwen2.5-7B-Instruct", "intermediate_size"),
        ("Qwen2.5-7B-Instruct", "num_attention_heads"),
        ("Mixtral-8x7B-v0.1", "num_local_experts"),
        ("Qwen3-30B-A3B", "moe_intermediate_size"),
        ("chatglm3-6b", "ffn_hidden_size"),
        ("chatglm3-6b", "multi_query_group_num"),
    ],
)
def test_a_missing_field_is_named(name: str, field: str) -> None:
    config = published_models.config(name)
    del config[field]
    with pytest.raises(EngineLoadError, match=rf"no usable {field}"):
        shape_of(config)
    with pytest.raises(EngineLoadError, match=rf"no usable {field}"):
        shape_of(config | {field: "many"})


def test_either_name_of_the_vocabulary() -> None:
    config = published_models.config("chatglm3-6b")
    config["vocab_size"] = config.pop("padded_vocab_size")
    assert shape_of(config) == published_models.shape("chatglm3-6b")
    del config["vocab_size"]
    with pytest.raises(EngineLoadError, match=r"no usable padded_vocab_size \(nor vocab_size\)"):
        shape_of(config)


def test_an_unknown_model_type_is_refused() -> None:
    with pytest.raises(EngineLoadError, match=r"model_type 'bloom', whose size is not known here: .*qwen2"):
        shape_of({"model_type": "bloom", "hidden_size": 64})
    with pytest.raises(EngineLoadError, match="model_type ''"):
        shape_of({})


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.text(max_size=3), st.just([]))
JSON = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2))
FIELDS = ("rope_scaling", "quantization_config", "mlp_only_layers", "architectures", "sliding_window", "head_dim")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_strange_files_are_read_or_refused(data: st.DataObject) -> None:
    """Whatever a field holds: a shape that can be counted, or the one error that has a sentence."""
    config = published_models.config(data.draw(st.sampled_from(NAMES)))
    for field in data.draw(st.lists(st.sampled_from([*config, *FIELDS]), min_size=1, max_size=3)):
        config[field] = data.draw(JSON)
    said = ""
    total = 0
    try:
        total = shape_of(config).parameters.total
    except EngineLoadError as error:
        said = str(error)
    assert total > 0 or "config.json has" in said


@pytest.mark.parametrize(
    "told",
    [
        {"rope_type": "yarn", "factor": "4"},
        {"rope_type": "linear", "factor": -1},
        {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": []},
    ],
)
def test_strange_scaling(told: dict[str, Any]) -> None:
    longest = shape_of(published_models.config("Qwen2.5-7B-Instruct") | {"rope_scaling": told}).max_position_embeddings
    assert longest in (32768, 65536)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"no config\.json"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EngineLoadError, match=r"cannot read .*config\.json"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(EngineLoadError, match="not a JSON object"):
        read_shape(tmp_path)
