"""A machine to build on: a checkpoint, the fake TensorRT-LLM and fake GPUs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.paths import DEMO
from tests_tensorrt_llm.engine.fake_support import FAKES

FAKE = FAKES / "trtllm_package"
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"
L4 = "NVIDIA L4, 23034, 8.9"


def make_checkpoint(target: Path, **config: object) -> Path:
    """The demo checkpoint, whose weights are a file that the fake does not look into; `config` changes config.json."""
    ignore = shutil.ignore_patterns("*.safetensors", "*.md")
    shutil.copytree(DEMO, target, ignore=ignore)
    (target / "pytorch_model.bin").write_bytes(b"weights")
    path = target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
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
