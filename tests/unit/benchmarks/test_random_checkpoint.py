"""Random checkpoints load, and greedy decoding of them gives text."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.random_checkpoint import SHAPES, checkpoint_in, configuration, cycle, tensor_shapes, text_ids, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("random") / "tiny"
    write("tiny", out, "cpu")
    return out


def test_it_generates_text_alone(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    output = model.generate(torch.tensor([[5, 6, 7, 8]]), do_sample=False, max_new_tokens=20, eos_token_id=None)
    allowed = set(text_ids())
    assert all(int(token) in allowed for token in output[0, 4:])
    assert tokenizer.decode(output[0, 4:]).strip()


@pytest.mark.parametrize("like", sorted(SHAPES))
def test_shapes(like: str, folder: Path) -> None:
    config, ids = configuration(like), text_ids()
    size = sum(math.prod(shape) for _, shape in tensor_shapes(config))
    assert len(ids) > 500
    assert max(ids) < SHAPES[like]["vocab_size"]
    assert config["eos_token_id"] not in ids
    if like == "qwen2.5-7b":
        assert size == 7_615_616_512
    if like == "tiny":
        index = msgspec.json.decode((folder / "model.safetensors.index.json").read_bytes())
        assert set(index["weight_map"]) == {name for name, _ in tensor_shapes(config)}
        assert index["metadata"]["total_size"] == 2 * size


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
