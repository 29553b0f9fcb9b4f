"""A machine to build on: the committed model repository, a checkpoint, the fake TensorRT-LLM and fake GPUs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[4]
FAKE = ROOT / "tests" / "fakes" / "trtllm_package"
MODELS = ("ensemble", "openai_bls", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls")
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"
L4 = "NVIDIA L4, 23034, 8.9"


def make_repository(target: Path) -> Path:
    """The committed repository without any engine."""
    for model in MODELS:
        ignore = shutil.ignore_patterns("checkpoint", "tokenizer*", "engine*", "lora", "__pycache__", ".*")
        shutil.copytree(ROOT / "model_repository" / model, target / model, ignore=ignore)
        (target / model / "1").mkdir(exist_ok=True)
    return target


def make_checkpoint(target: Path, **config: object) -> Path:
    """The demo checkpoint, whose weights are a file that the fake does not look into; `config` changes config.json."""
    ignore = shutil.ignore_patterns("*.safetensors", "*.md")
    shutil.copytree(ROOT / "demo" / "checkpoint", target, ignore=ignore)
    (target / "pytorch_model.bin").write_bytes(b"weights")
    path = target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return target


def make_adapter(target: Path, rank: int = 8, module: str = "self_attn.q_proj", **config: object) -> Path:
    """An adapter that changes one layer of a model of size 4, and does nothing to it."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 8} | config))
    key = f"base_model.model.model.layers.0.{module}.lora_{{}}.weight"
    weights = {key.format("A"): np.zeros((rank, 4), np.float32), key.format("B"): np.zeros((4, rank), np.float32)}
    save_file(weights, target / "adapter_model.safetensors")
    return target


class Machine:
    """Where builds run: tests change its version and GPUs. Its environment reaches the processes that builds start."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._bin = folder / "bin"
        self._bin.mkdir()
        self.calls = folder / "calls.jsonl"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.set(PATH=f"{self._bin}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=str(FAKE), TMPDIR=str(self.temporary))
        # Answers without a model, so that neither torch nor weights are needed.
        self.set(FAKE_TENSORRT_LLM_TOKENS="1 2 3", FAKE_TENSORRT_LLM_CALLS=str(self.calls))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.syspath_prepend(str(FAKE))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.install_gpus(H100)

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def install_gpus(self, *gpus: str) -> None:
        """`name, MiB, capability` of each."""
        lines = [f"{number}, GPU-{number}, {gpu}" for number, gpu in enumerate(gpus)]
        script = self._bin / "nvidia-smi"
        script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        script.chmod(0o755)

    def builds(self) -> list[dict[str, object]]:
        """Arguments of the builds so far."""
        if not self.calls.is_file():
            return []
        lines = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return [line for line in lines if line["call"] == "LLM.tensorrt"]


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
