"""Cost of LoRA adapters in the embedded engine: `python -m benchmarks.adapters --shape qwen2.5-7b`.

A checkpoint of random weights, and an adapter of rank 16 for every linear layer of a block. Tokens/s of greedy requests
of 64 prompt tokens and 128 new ones, at several concurrencies: without room for adapters, with room and none in use,
with half and with all of the requests under the adapter.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import random_checkpoint
from benchmarks.asking import Asker
from benchmarks.options import levels
from benchmarks.report import markdown_table
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.manifest import LoraSettings, Manifest, write_manifest
from openai_bls.engines.registry import create_engine

_RANK = 16
_PROMPT_TOKENS, _NEW_TOKENS = 64, 128
_HIGHEST_TOKEN = 3000
_ROOM = LoraSettings(max_loras=2, max_lora_rank=_RANK)
_CASES: dict[str, tuple[LoraSettings, int]] = {
    "no room": (LoraSettings(), 0),
    "room, none in use": (_ROOM, 0),
    "half of the requests": (_ROOM, 2),
    "all requests": (_ROOM, 1),
}
"""Settings of the engine, and of how many requests one is under the adapter; 0 is none."""


def write_adapter(config: dict[str, Any], folder: Path) -> None:
    """A random adapter for a checkpoint with that config.json."""
    import torch
    from safetensors.torch import save_file

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    sizes = {
        "self_attn": {
            "q_proj": (hidden, hidden),
            "k_proj": (hidden, keys),
            "v_proj": (hidden, keys),
            "o_proj": (hidden, hidden),
        },
        "mlp": {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)},
    }
    torch.manual_seed(0)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for part, layers in sizes.items():
            for name, (inputs, outputs) in layers.items():
                path = f"base_model.model.model.layers.{layer}.{part}.{name}"
                tensors[f"{path}.lora_A.weight"] = torch.randn(_RANK, inputs) * 0.01
                tensors[f"{path}.lora_B.weight"] = torch.randn(outputs, _RANK) * 0.01
    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    names = [name for layers in sizes.values() for name in layers]
    described = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "target_modules": names, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described), encoding="utf-8")


def measure(folder: Path, adapter: Path, share: int, at: Sequence[int], rounds: int) -> list[float]:
    """Tokens/s at each concurrency, medians of the rounds.

    Args:
        folder: of the engine.
        adapter: loaded if `share` is not 0.
        share: one request of so many is under it.
        at: concurrencies.
        rounds: at each.
    """
    numbers = random.Random(1)
    asker = Asker()
    engine = asker.engine = create_engine(folder, asker.on_step, {})
    try:
        if share:
            engine.load_lora("adapter", str(adapter))
        found = []
        for level in at:
            rates = []
            for _ in range(rounds):
                requests = [
                    GenerationRequest(
                        request_id=0,
                        prompt_token_ids=[numbers.randrange(10, _HIGHEST_TOKEN) for _ in range(_PROMPT_TOKENS)],
                        max_tokens=_NEW_TOKENS,
                        sampling=SamplingParams(temperature=0),
                        lora_name="adapter" if share and number % share == 0 else None,
                    )
                    for number in range(level)
                ]
                began = time.perf_counter()
                answers = asker.ask(requests)
                rates.append(sum(len(answer.tokens) for answer in answers) / (time.perf_counter() - began))
            found.append(statistics.median(rates))
        return found
    finally:
        engine.close()


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=random_checkpoint.SHAPES, default="qwen2.5-7b", help="default %(default)s")
    parser.add_argument("--concurrency", type=levels, default="1,16,64", help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory(prefix="adapters-") as work:
        folder, adapter = Path(work) / "engine", Path(work) / "adapter"
        random_checkpoint.write(options.shape, folder / "checkpoint")
        write_adapter(json.loads((folder / "checkpoint" / "config.json").read_bytes()), adapter)
        manifest = Manifest(
            engine="transformers", model_name=options.shape, max_model_len=1024, max_batch_size=64, created=1
        )
        for name, (lora, share) in _CASES.items():
            write_manifest(folder, msgspec.structs.replace(manifest, lora=lora))
            rates = measure(folder, adapter, share, options.concurrency, options.rounds)
            rows.append([name, *(f"{rate:,.0f}" for rate in rates)])
            gc.collect()
    print(markdown_table(("tokens/s", *(f"at {level}" for level in options.concurrency)), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
