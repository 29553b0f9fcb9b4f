"""Weights that are not quite those of config.json's model: what is served is what transformers serves of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.unit.builder.builds import answer, refusal, run
from tests.unit.builder.checkpoint.breaks import WEIGHTS, config, indexed, tensors

MORE: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {
    "masks of older releases": ("self_attn.attn.bias", lambda: torch.ones(1, 1, 8, 8, dtype=torch.bool)),
    "the number behind a mask": ("self_attn.attn.masked_bias", lambda: torch.tensor(-1e4)),
    "a bias of zeros": ("self_attn.o_proj.bias", lambda: torch.zeros(64)),
    "a bias that the class has not": ("self_attn.o_proj.bias", lambda: torch.randn(64)),
    "scales of an FP8 cache": ("self_attn.k_scale", lambda: torch.tensor(0.5)),
}
"""One further tensor of every layer."""


def served_by_transformers(folder: Path) -> list[int]:
    """What `answer` has to be, by transformers' own loading of the folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[5, 6, 7]])
    found: Any = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    return list(found[0, 3:].tolist())


def others(folder: Path) -> dict[str, torch.Tensor]:
    """Weights in the shapes of those in `folder`, and others."""
    generator = torch.Generator().manual_seed(1)
    held = load_file(folder / WEIGHTS)
    return {name: torch.randn(one.shape, generator=generator).to(one.dtype) * 0.3 for name, one in held.items()}


@pytest.mark.parametrize("case", MORE)
def test_one_more_tensor_in_every_layer(case: str, source: Path, repository: Path) -> None:
    name, make = MORE[case]
    tensors(lambda held: held.update({f"model.layers.{number}.{name}": make() for number in range(2)}))(source)
    _, lines = run(source, repository)
    assert f"weights: the model does not use model.layers.0.{name} and 1 more" in lines
    assert answer(repository) == served_by_transformers(source)


def test_an_index_beside_one_file(source: Path, repository: Path) -> None:
    """transformers takes the file, whatever the index says."""
    whole = others(source)
    indexed(**{"model.gone.weight": "model-00002-of-00002.safetensors"})(source)
    save_file(whole, source / WEIGHTS, {"format": "pt"})
    _, lines = run(source, repository)
    assert f"weights: those of {WEIGHTS}; not read: model-00001-of-00002.safetensors" in lines
    assert answer(repository) == served_by_transformers(source)


@pytest.mark.parametrize("index", [False, True])
def test_files_that_the_configuration_names(index: bool, source: Path, repository: Path) -> None:
    part = source / "mine.safetensors"
    save_file(others(source), part, {"format": "pt"})
    named = f"mine{'.safetensors.index.json' if index else '.safetensors'}"
    if index:
        listed = dict.fromkeys(load_file(part), part.name)
        (source / named).write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    config(transformers_weights=named)(source)
    run(source, repository)
    assert answer(repository) == served_by_transformers(source)
    config(transformers_weights="../x.safetensors")(source)
    assert "transformers_weights" in refusal(source, repository)


def test_pytorch_files_beside_an_index(source: Path, repository: Path) -> None:
    torch.save(others(source), source / "pytorch_model.bin")
    (source / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-00001.bin"}}')
    (source / WEIGHTS).unlink()
    run(source, repository)
    assert answer(repository) == served_by_transformers(source)


def test_pytorch_files_of_another_model(source: Path, repository: Path) -> None:
    held = load_file(source / WEIGHTS)
    (source / WEIGHTS).unlink()
    for changed, told in (
        ({f"module.{name}": one for name, one in held.items()}, "'module.'"),
        (held | {"model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(2, 2)}, "LoRA"),
    ):
        torch.save(changed, source / "pytorch_model.bin")
        assert told in refusal(source, repository)
    torch.save(held, source / "pytorch_model.bin")
    config(num_hidden_layers=1, layer_types=["full_attention"])(source)
    assert "number 1," in refusal(source, repository)
    run(source, repository, force=True)
    assert answer(repository) == served_by_transformers(source)


def test_fp8_without_a_scale_and_without_a_word(source: Path, repository: Path) -> None:
    """Plain numbers, as transformers takes them, and the build says so."""
    name = "model.layers.0.mlp.up_proj.weight"
    tensors(lambda held: held.update({name: held[name].to(torch.float8_e4m3fn)}))(source)
    _, lines = run(source, repository)
    assert any("F8_E4M3" in line and name in line for line in lines)
    assert answer(repository) == served_by_transformers(source)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_quantized_without_a_word(dtype: torch.dtype, source: Path, repository: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"

    def quantize(held: dict[str, torch.Tensor]) -> None:
        scale = held[name].abs().amax(1, keepdim=True) / 100
        held.update({name: (held[name] / scale).to(dtype), f"{name}_scale": scale})

    tensors(quantize)(source)
    found = refusal(source, repository)
    assert name in found
    assert "quantization_config" in found
    run(source, repository, force=True)
    assert answer(repository) == served_by_transformers(source)


def test_an_attention_that_is_not_installed(source: Path, repository: Path) -> None:
    """The runner has its own; transformers by itself refuses the folder."""
    wanted = served_by_transformers(source)
    config(attn_implementation="flash_attention_2")(source)
    with pytest.raises(ImportError):
        served_by_transformers(source)
    run(source, repository, self_test=True)
    assert answer(repository) == wanted
    config(_attn_implementation="flash_attention_2")(source)
    found = refusal(source, repository, self_test=True)
    assert "FlashAttention2" in found
    assert not found.endswith(":")
