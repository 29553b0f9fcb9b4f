"""Kinds of checkpoints that are served beside the plain ones: quantized to FP8, and the text part of a vision model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from openai_bls_transformers.recipe.engine_build import EmbeddedOptions
from openai_bls_transformers.record import EmbeddedRecord
from tests.unit.builder.builds import answer, refusal, run
from tests_transformers.engine.model.test_fp8 import by_row, write_fp8

BLOCK = 32


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weight in FP8, the scale of each block, and what the two make."""
    scale = torch.nn.functional.max_pool2d(weight.abs()[None], BLOCK, ceil_mode=True)[0] / 448
    spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: weight.shape[0], : weight.shape[1]]
    stored = (weight / spread).to(torch.float8_e4m3fn)
    return stored, scale, stored.float() * spread


def test_fp8(source: Path, repository: Path) -> None:
    """On a CPU transformers makes bfloat16 of it: the same answer as from the weights that the blocks stand for."""
    held = {name: tensor.float() for name, tensor in load_file(source / "model.safetensors").items()}
    plain, stored = dict(held), dict(held)
    for name, tensor in held.items():
        if name.endswith("_proj.weight"):
            stored[name], stored[f"{name}_scale_inv"], plain[name] = quantize(tensor)
    save_file(plain, source / "model.safetensors")
    run(source, repository)
    wanted = answer(repository)
    save_file(stored, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    told = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": told}))
    run(source, repository)
    assert answer(repository) == wanted


def test_an_fp8_checkpoint_as_it_is(source: Path, repository: Path) -> None:
    """Without any package for it: the answer is that of the numbers which the weights stand for."""
    fp8 = source.parent / "fp8"
    meant = write_fp8(source, fp8, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, by_row)
    save_file(meant, source / "model.safetensors")
    run(source, repository)
    wanted = answer(repository)
    manifest, _ = run(fp8, repository)
    assert EmbeddedRecord.of(manifest).quant == ""
    assert answer(repository) == wanted
    assert "is quantized already" in refusal(fp8, repository, own=EmbeddedOptions("fp8"))
    save_file(meant, fp8 / "model.safetensors")
    assert "none of them is" in refusal(fp8, repository, self_test=True)


def test_quantizing_to_fp8(source: Path, repository: Path) -> None:
    manifest, lines = run(source, repository, own=EmbeddedOptions("fp8"), self_test=True)
    assert EmbeddedRecord.of(manifest).quant == "fp8"
    tested = EmbeddedRecord.of(manifest).self_test
    assert tested is not None
    distance = tested.quant_distance
    assert distance is not None
    assert 0 < distance.mean < distance.max
    assert any(f"{distance.mean:.4f} in the mean" in line for line in lines)
    assert len(answer(repository)) == 8


def test_the_text_part_of_a_vision_model(source: Path, repository: Path) -> None:
    text = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "sliding_window": 32}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=text | heads,
            vision_config=vision | {"image_size": 28, "patch_size": 14},
            mm_tokens_per_image=4,
            image_token_index=500,
        )
    )
    model.save_pretrained(source)
    manifest, lines = run(source, repository)
    assert manifest.max_model_len == 256
    assert any("Gemma3ForConditionalGeneration" in line and "its text part is served" in line for line in lines)
    ids = torch.tensor([[5, 6, 7]])
    generated = model.eval().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert answer(repository) == generated[0, 3:].tolist()
