"""Weights in FP8: quantized here, or so in the checkpoint; and what that does to the demo model's log-probabilities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from openai_bls.core.manifest import EngineLoadError, Manifest, write_manifest
from openai_bls_transformers import fp8_numbers
from openai_bls_transformers.engine.engine import TransformersEngine
from openai_bls_transformers.fp8_numbers import FP8
from openai_bls_transformers.model import fp8_layers, fused_layers, quant_distance
from openai_bls_transformers.model.fp8_layers import Fp8Linear
from openai_bls_transformers.model.model_loader import read_model
from openai_bls_transformers.record import QuantDistance
from tests.engine_contract.fixtures import EngineFactory
from tests.engine_contract.support import MAX_MODEL_LEN, request, run_all
from tests.paths import DEMO, ROOT
from tests.prompt_logprobs import unpacked
from tests_transformers.engine.adapters import EVERYTHING, Reference, make_adapter, with_adapters

CPU = torch.device("cpu")
IDS = torch.tensor([[5, 6, 7, 8, 9]])

Store = Callable[[torch.Tensor], dict[str, torch.Tensor]]


def manifest(**more: Any) -> Manifest:
    return Manifest(
        engine="transformers", model_name="tiny", max_model_len=MAX_MODEL_LEN, max_batch_size=4, created=1, **more
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS, use_cache=False).logits
    return found


def test_a_quantized_weight() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 64) * torch.tensor([1e-6, 0.01, 1, 100, 1e6, 0])[:, None]
    found, scale = fp8_numbers.quantize_weight(weight)
    error = (found.float() * scale - weight).abs()
    largest = weight.abs().amax(1, keepdim=True)
    assert bool((error <= weight.abs() / 16 + largest * 2**-18).all())
    assert not found[5].float().any()


def test_what_is_quantized() -> None:
    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleDict({"up": nn.Linear(32, 48), "odd": nn.Linear(32, 9), "gate": nn.Linear(32, 16)})
            self.head = nn.Linear(32, 64)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    model = Model()
    x, wanted = torch.randn(2, 32), model.body["up"].bias.clone()
    assert fp8_layers.quantize(model, CPU) == 1
    assert [name for name, module in model.named_modules() if isinstance(module, Fp8Linear)] == ["body.up"]
    assert model.body["up"].weight.dtype == FP8
    torch.testing.assert_close(model.body["up"](torch.zeros(2, 32))[1], wanted)
    assert model.body["up"](x).shape == (2, 48)


def test_what_cannot_be_quantized() -> None:
    plain = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32))
    with pytest.raises(EngineLoadError, match="linear layer"):
        fp8_layers.quantize(plain, CPU)
    plain.register_parameter("experts", None)
    plain.transformer.experts = nn.ParameterDict({"down_proj": nn.Parameter(torch.zeros(2, 4, 4))})
    with pytest.raises(EngineLoadError, match="dense models"):
        fp8_layers.quantize(plain, CPU)


def test_gpus_without_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    assert "from 8.9 on, and the A100 has 8.0" in (fp8_numbers.refusal(gpu, torch.bfloat16) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert "bfloat16 alone, not in float16" in (fp8_numbers.refusal(gpu, torch.float16) or "")
    assert fp8_numbers.refusal(gpu, torch.bfloat16) is None
    assert fp8_numbers.refusal(CPU, torch.float32) is None


def test_layers_put_together(checkpoint: Path) -> None:
    model = read_model(checkpoint, manifest(record={"quant": "fp8"}), CPU, "eager")
    before = logits(model)
    held = sum(parameter.nbytes for parameter in model.parameters())
    for layer in model.model.layers:
        assert fused_layers._fuse_gate(layer.mlp) == fused_layers._fuse_projections(layer.self_attn) == 1
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    assert sum(parameter.nbytes for parameter in model.parameters()) == held
    attention = model.model.layers[0].self_attn
    assert attention.k_proj.weight.untyped_storage().data_ptr() == attention.q_proj.weight.untyped_storage().data_ptr()


def by_row(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    stored, scale = fp8_numbers.quantize_weight(weight)
    return {"": stored, "_scale": scale}


def by_row_in_bfloat16(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 440).bfloat16()
    return {"": (weight / scale.float()).to(FP8), "_scale": scale}


def of_the_whole(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    scale = weight.abs().max() / 448
    return {"": (weight / scale).to(FP8), "_scale": scale}


def of_the_whole_inverted(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    stored = of_the_whole(weight)
    return {"": stored[""], "_scale_inv": stored["_scale"]}


def compressed_tensors(strategy: str, inputs: dict[str, Any] | None) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups,
        "ignore": ["lm_head"], "quantization_status": "compressed", "kv_cache_scheme": None,
    }  # fmt: skip


TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
FORMS: dict[str, tuple[dict[str, Any], Store]] = {
    "LLM Compressor, FP8_DYNAMIC": (compressed_tensors("channel", TOKENS), by_row_in_bfloat16),
    "LLM Compressor, FP8": (compressed_tensors("tensor", STATIC), of_the_whole),
    "FBGEMM": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, by_row),
    "AutoFP8": ({"quant_method": "fp8", "activation_scheme": "static"}, of_the_whole),
    "transformers": (
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        of_the_whole_inverted,
    ),
}


def write_fp8(source: Path, folder: Path, told: dict[str, Any], store: Store) -> dict[str, torch.Tensor]:
    """Write the checkpoint `source` in FP8; returns what its tensors stand for."""
    shutil.copytree(source, folder)
    held: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in list(held.items()):
        if not name.endswith("_proj.weight"):
            stored[name] = tensor
            continue
        parts = store(tensor.float())
        stored |= {name + end: part.contiguous() for end, part in parts.items()}
        stored[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
        weight, scale = parts.values()
        held[name] = weight.float() * scale.float()
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": told}))
    return held


@pytest.mark.parametrize("form", FORMS)
def test_fp8_checkpoints(form: str, checkpoint: Path, tmp_path: Path) -> None:
    meant = write_fp8(checkpoint, tmp_path / "fp8", *FORMS[form])
    shutil.copytree(checkpoint, tmp_path / "plain")
    save_file(meant, tmp_path / "plain" / "model.safetensors")
    model = read_model(tmp_path / "fp8", manifest(), CPU, "eager")
    layers = [module for module in model.modules() if isinstance(module, Fp8Linear)]
    assert len(layers) == 14  # seven in each of two
    assert all(layer.weight.dtype == FP8 for layer in layers)
    plain = read_model(tmp_path / "plain", manifest(), CPU, "eager")
    torch.testing.assert_close(logits(model), logits(plain), rtol=1e-5, atol=1e-5)


def test_layers_that_tensor_cores_do_not_take(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are widened at the load."""
    meant = write_fp8(checkpoint, tmp_path / "fp8", *FORMS["FBGEMM"])
    monkeypatch.setattr(fp8_layers, "is_aligned", lambda layer: layer.in_features == 128)
    model = read_model(tmp_path / "fp8", manifest(), CPU, "eager")
    kinds = {name: module.weight.dtype for name, module in model.named_modules() if name.endswith("_proj")}
    assert {name for name, kind in kinds.items() if kind == FP8} == {f"model.layers.{i}.mlp.down_proj" for i in (0, 1)}
    wide = model.model.layers[1].self_attn.o_proj.weight
    torch.testing.assert_close(wide.data, meant["model.layers.1.self_attn.o_proj.weight"])


def test_a_device_without_room_for_the_comparison(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkpoint, tmp_path / "checkpoint")
    shutil.copytree(checkpoint, tmp_path / "tokenizer")
    assert read_model(tmp_path / "checkpoint", manifest(record={"quant": "fp8"}), CPU, "eager").quant_distance.mean > 0

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(quant_distance, "logprobs", full)
    model = read_model(tmp_path / "checkpoint", manifest(record={"quant": "fp8"}), CPU, "eager")
    assert fp8_layers.is_quantized(model)
    assert not hasattr(model, "quant_distance")


def test_fp8_checkpoints_that_are_not_whole(checkpoint: Path, tmp_path: Path) -> None:
    told, store = FORMS["FBGEMM"]
    write_fp8(checkpoint, tmp_path / "fp8", told, store)
    path = tmp_path / "fp8" / "model.safetensors"
    tensors, name = load_file(path), "model.layers.0.mlp.up_proj.weight"
    for change, words in (
        ({f"{name}_scale": None}, f"{name} .*FP8 "),
        ({f"{name}_scale": torch.ones(4, 2)}, r" \[4, 2\]"),
        ({name: tensors[name].view(torch.float8_e5m2)}, "F8_E5M2"),
        (
            {"model.extra.weight": tensors[name].clone(), "model.extra.weight_scale": torch.ones(1)},
            "model.extra in FP8",
        ),
    ):
        changed = {key: tensor for key, tensor in (tensors | change).items() if tensor is not None}
        save_file(changed, path)
        with pytest.raises(EngineLoadError, match=words):
            read_model(tmp_path / "fp8", manifest(), CPU, "eager")


def test_an_engine_with_an_adapter(checkpoint: Path, tmp_path: Path, start: EngineFactory) -> None:
    """Its answers are peft's over what the weights in FP8 stand for."""
    meant = write_fp8(checkpoint, tmp_path / "fp8", *FORMS["FBGEMM"])
    shutil.copytree(checkpoint, tmp_path / "plain")
    save_file(meant, tmp_path / "plain" / "model.safetensors")
    adapter = make_adapter(checkpoint, tmp_path / "adapter", **EVERYTHING)
    folder = tmp_path / "engine"
    shutil.copytree(checkpoint, folder / "checkpoint")
    shutil.copytree(checkpoint, folder / "tokenizer")
    write_manifest(folder, manifest(record={"quant": "fp8"}))
    engine, recorder = start(with_adapters(folder, tmp_path / "copy", {"one": adapter}, max_loras=1, max_lora_rank=6))
    names = {1: None, 2: "one"}
    found = run_all(engine, recorder, [request(number, lora_name=name) for number, name in names.items()])
    reference = Reference(tmp_path / "plain", {"one": adapter})
    assert found == [reference.greedy(name, (5, 6, 7), 8)[0] for name in names.values()]
    assert isinstance(engine, TransformersEngine)
    assert engine.self_test is not None
    assert engine.self_test.quant_distance is not None
    assert engine.self_test.quant_distance.mean > 0


def test_embeddings_and_logprobs_of_a_prompt(version_dir: Path, tmp_path: Path, start: EngineFactory) -> None:
    """They are those of the weights that FP8 stands for."""
    meant = write_fp8(version_dir / "checkpoint", tmp_path / "fp8" / "checkpoint", *FORMS["FBGEMM"])
    shutil.copytree(version_dir, tmp_path / "plain")
    save_file(meant, tmp_path / "plain" / "checkpoint" / "model.safetensors")
    found = []
    for name in ("fp8", "plain"):
        write_manifest(tmp_path / name, manifest())
        engine, recorder = start(tmp_path / name)
        run_all(engine, recorder, [request(1, max_tokens=0, pooling="last", prompt_logprobs=1)])
        [delta] = recorder.deltas(1)
        found.append([*(delta.embedding or ()), *unpacked(delta.prompt_logprobs).token_logprobs])
    assert len(found[0]) > 3
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def golden_ids() -> list[list[int]]:
    """Raw prompts of demo/golden.jsonl with their answers."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    rows = [msgspec.json.decode(line) for line in (ROOT / "demo" / "golden.jsonl").read_bytes().splitlines()]
    return [tokenizer.encode(row["raw"] + row["answer"]).ids for row in rows if "raw" in row]


def distance(found: Any, wanted: Any, texts: list[list[int]]) -> QuantDistance:
    parts = [[quant_distance.logprobs(model, ids) for ids in texts] for model in (wanted, found)]
    following = [0, *(token for ids in texts for token in ids[1:])]
    return quant_distance.measure(torch.cat(parts[0]), torch.cat(parts[1]), following)


def test_the_distance_of_the_demo_model() -> None:
    """benchmarks/RESULTS.md has the numbers; a scale that is wrong by a twentieth would double the mean."""
    plain, model = (AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval() for _ in range(2))
    texts = golden_ids()
    fp8_layers.quantize(model, CPU)
    found = distance(model, plain, texts)
    assert found.mean < 0.008
    assert found.same_greedy > 0.99
