"""Random checkpoints load, and greedy decoding of them gives text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.support.checkpoint_shapes import SHAPES, stored_bytes, tensor_shapes
from benchmarks.support.random_checkpoint import checkpoint_in, cycle, write


def test_both_kinds_share_their_layers(tmp_path: Path) -> None:
    plain, continuing = checkpoint_in(tmp_path, "tiny"), checkpoint_in(tmp_path, "tiny", continuing=True)
    own = {path.name for path in continuing.glob("*.safetensors") if not path.is_symlink()}
    index = msgspec.json.decode((continuing / "model.safetensors.index.json").read_bytes())
    assert {name for name, file in index["weight_map"].items() if file in own} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (plain, continuing)]
    layers, others = (model.model.layers.state_dict() for model in models)
    assert all(torch.equal(tensor, others[name]) for name, tensor in layers.items())
    assert checkpoint_in(tmp_path, "tiny", continuing=True) == continuing


def test_a_continuing_one_goes_on_in_its_cycle(tmp_path: Path) -> None:
    write("tiny", tmp_path, "cpu", seed=3, continuing=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    tokens = cycle("tiny")
    assert cycle("qwen2.5-0.5b") == cycle("qwen2.5-7b")
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    likely = logits.softmax(-1).topk(3)
    assert likely.indices[:, 0].tolist() == [*tokens[1:], *tokens[:1]]
    assert likely.indices[:, 1].tolist() == [*tokens[2:], *tokens[:2]]
    assert likely.values[:, 0].mean() == pytest.approx(0.924, abs=0.01)
    assert likely.values[:, 2].max() < 1e-6


def test_one_in_fp8_has_a_scale_for_each_matrix(tmp_path: Path) -> None:
    assert write("tiny-fp8", tmp_path, "cpu") == sum(
        tensor.nbytes for path in tmp_path.glob("*.safetensors") for tensor in load_file(path).values()
    )
    index = msgspec.json.decode((tmp_path / "model.safetensors.index.json").read_bytes())["weight_map"]
    names = [name for name, _ in tensor_shapes("tiny-fp8")]
    scales = {f"{name}_scale" for name in names if name.endswith("_proj.weight")}
    assert {*index} == {*names} | scales
    last = load_file(tmp_path / index["model.layers.3.mlp.up_proj.weight"])
    weight, scale = (last[f"model.layers.3.mlp.up_proj.weight{end}"] for end in ("", "_scale"))
    assert weight.dtype == torch.float8_e4m3fn
    assert (weight.float() * scale).std() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("like", [like for like in SHAPES if like.startswith("tiny-") and like != "tiny-fp8"])
def test_transformers_finds_every_tensor_of_a_family(tmp_path: Path, like: str) -> None:
    assert write(like, tmp_path, "cpu") == stored_bytes(like)
    model, found = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values()), found
    assert model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False).shape == (1, 6)
    with pytest.raises(ValueError, match="alike"):
        write(like, tmp_path, "cpu", continuing=True)


@pytest.mark.parametrize(
    ("like", "billions"),
    [("llama-3.1-8b", 8.03), ("qwen3-30b-a3b", 30.5), ("gemma-3-4b", 3.88), ("gpt-oss-20b", 20.9)],
)
def test_a_shape_has_as_many_parameters_as_its_model(like: str, billions: float) -> None:
    assert stored_bytes(like) / 2e9 == pytest.approx(billions, rel=0.005)
