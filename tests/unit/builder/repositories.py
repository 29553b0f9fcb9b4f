"""Model repositories and adapters of builds, and what builds leave in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.paths import ROOT

MODELS = ("ensemble", "openai_bls", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls")


def make_repository(target: Path) -> Path:
    """The committed repository without any engine."""
    for model in MODELS:
        ignore = shutil.ignore_patterns("checkpoint", "tokenizer*", "engine*", "lora", "__pycache__", ".*")
        shutil.copytree(ROOT / "model_repository" / model, target / model, ignore=ignore)
        (target / model / "1").mkdir(exist_ok=True)
    return target


def make_adapter(target: Path, rank: int = 8, module: str = "self_attn.q_proj", **config: object) -> Path:
    """An adapter that changes one layer of a model of size 4, and does nothing to it."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 8} | config))
    key = f"base_model.model.model.layers.0.{module}.lora_{{}}.weight"
    weights = {key.format("A"): np.zeros((rank, 4), np.float32), key.format("B"): np.zeros((4, rank), np.float32)}
    save_file(weights, target / "adapter_model.safetensors")
    return target


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of all files by their paths, Python's caches left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def leftovers(repository: Path) -> list[Path]:
    """What a build has left in hand."""
    return [path for pattern in (".aside-*", ".building-*", ".gone-*") for path in repository.rglob(pattern)]
