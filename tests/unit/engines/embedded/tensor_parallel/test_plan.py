"""What is split over several GPUs, and what is refused by name."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.engines.embedded.fp8_layers import Fp8Linear
from openai_bls.engines.embedded.model_loader import read_model
from openai_bls.engines.embedded.options import EngineOptions
from openai_bls.engines.embedded.tensor_parallel.plan import plan_of
from openai_bls.engines.embedded.tensor_parallel.shards import load_shard
from tests.unit.engines.embedded.test_fp8 import FORMS, write_fp8

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MANIFEST = Manifest(engine="transformers", model_name="m", max_model_len=64, max_batch_size=2, created=0)


class Together:
    """Collective operations of ranks that are threads of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=60)
        self._parts: dict[int, torch.Tensor] = {}
        self._mine = threading.local()

    def run(self, models: list[Any], ids: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each rank."""
        found: dict[int, torch.Tensor] = {}

        def one(rank: int) -> None:
            self._mine.rank = rank
            with torch.no_grad():
                found[rank] = models[rank](input_ids=ids, use_cache=False).logits

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[rank] for rank in range(self.size)]

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._parts[self._mine.rank] = x
        self._barrier.wait()
        parts = [self._parts[rank] for rank in range(self.size)]
        self._barrier.wait()
        return parts


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"tie_word_embeddings": False}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 16}),
        ("starcoder2", {"use_bias": True}),  # biases behind the sums, to be added once
        ("cohere", {}),
        ("gemma", {"head_dim": 16, "vocab_size": 97}),  # a head that nobody divides
    ],
)
def test_shards_together_are_the_model(kind: str, more: dict[str, Any], size: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **more})).eval()
    for name, parameter in whole.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    whole.save_pretrained(tmp_path)
    plan = plan_of(tmp_path, size, trust_remote_code=False)
    group: Any = Together(size)
    cpu = torch.device("cpu")
    shards = [load_shard(tmp_path, MANIFEST, EngineOptions(), plan, rank, group, cpu) for rank in range(size)]
    ids = torch.randint(3, SIZES["vocab_size"], (1, 20))
    with torch.no_grad():
        wanted = whole(input_ids=ids, use_cache=False).logits
    for logits in group.run(shards, ids):
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
    held = [sum(parameter.numel() for parameter in shard.base_model.layers.parameters()) for shard in shards]
    assert max(held) < 1.2 / size * sum(parameter.numel() for parameter in whole.base_model.layers.parameters())


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("form", ["quantized here", *FORMS])
def test_shards_in_fp8_are_those_of_the_model(form: str, size: int, tmp_path: Path) -> None:
    """Bit by bit: a layer that is split by its inputs has the scales of whole rows."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES, "intermediate_size": 128, "head_dim": 16}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **sizes)).save_pretrained(tmp_path / "wide")
    folder, quant = tmp_path / "wide", "fp8" if form == "quantized here" else ""
    if form in FORMS:
        folder = tmp_path / "fp8"
        write_fp8(tmp_path / "wide", folder, *FORMS[form])
    manifest, cpu = msgspec.structs.replace(MANIFEST, quant=quant), torch.device("cpu")
    whole, plan = read_model(folder, manifest, cpu, "sdpa"), plan_of(folder, size, trust_remote_code=False)
    group: Any = Together(size)
    shards = [load_shard(folder, manifest, EngineOptions(), plan, rank, group, cpu) for rank in range(size)]
    layers = {name: layer for name, layer in whole.named_modules() if isinstance(layer, Fp8Linear)}
    assert len(layers) == 14  # seven in each of two
    for name, layer in layers.items():
        rows = plan.split_of(name) == "rows"
        parts = [shard.get_submodule(f"{name}.linear" if rows else name) for shard in shards]
        for own in ("weight", "weight_scale"):
            held = [getattr(part, own).float() for part in parts]
            found = held[0] if rows and own == "weight_scale" else torch.cat(held, int(rows))
            torch.testing.assert_close(found, getattr(layer, own).float(), rtol=0, atol=0)
    ids = torch.randint(3, SIZES["vocab_size"], (1, 20))
    with torch.no_grad():
        wanted = whole(input_ids=ids, use_cache=False).logits
    for logits in group.run(shards, ids):
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        ({"model_type": "gpt2"}, 2, "transformers has no tensor-parallel plan for gpt2"),
        ({"model_type": "phi3"}, 2, "transformers' plan for phi3 splits some layers by colwise_gather_output"),
        ({"model_type": "gpt_neox"}, 2, "transformers' plan for gpt_neox does not split its attention by heads"),
        ({"model_type": "gemma4_unified_text"}, 2, "its heads differ in size"),
        ({}, 3, "--tp-size 3: .* 3 GPUs do not divide its 8 attention heads"),
        ({}, 8, "8 GPUs do not divide its 4 key value heads"),
        ({"intermediate_size": 97}, 2, "2 GPUs do not divide its 97 intermediate size"),
        ({"quantization_config": {"quant_method": "gptq"}}, 2, "its weights are quantized, and only FP8 with a scale"),
    ],
)
def test_refusals(changes: dict[str, Any], size: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **SIZES, **changes}))
    with pytest.raises(EngineLoadError, match=said):
        plan_of(tmp_path, size, trust_remote_code=False)


def test_code_of_a_checkpoint_is_not_split(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match="its Python code came with the checkpoint"):
        plan_of(tmp_path, 2, trust_remote_code=True)
