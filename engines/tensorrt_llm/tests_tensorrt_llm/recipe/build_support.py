"""A machine to build on: a checkpoint, the fake TensorRT-LLM and fake GPUs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.manifest import BuildError, Manifest
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.paths import DEMO
from tests.unit.builder.repositories import contents, leftovers
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

    def builds(self) -> list[dict[str, Any]]:
        """Arguments of the builds so far."""
        if not self.calls.is_file():
            return []
        lines = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return [line for line in lines if line["call"] == "LLM.tensorrt"]


class Bench:
    """Builds of one checkpoint for one repository.

    Args:
        machine: where the builds run.
        source: the checkpoint.
        repository: model repository that gets the engines.
    """

    def __init__(self, machine: Machine, source: Path, repository: Path) -> None:
        self.machine = machine
        self.source = source
        self.repository = repository
        self.config = repository / "tensorrt_llm" / "config.pbtxt"
        self.folder = repository / "tensorrt_llm" / "1"

    def build(
        self, own: TensorRtLlmOptions | None = None, source: Path | None = None, **options: Any
    ) -> tuple[Manifest, list[str]]:
        """Build an engine, of the TensorRT flow unless `own` or `flow` say otherwise; its manifest and its lines."""
        lines: list[str] = []
        own = own or TensorRtLlmOptions()
        if "flow" not in options:
            own = msgspec.structs.replace(own, flow=own.flow or "tensorrt")
        options.pop("flow", None)
        wanted = BuildOptions(str(source or self.source), self.repository, engine="tensorrt_llm", own=own)
        return build(msgspec.structs.replace(wanted, **options), lines.append), lines

    def run(self, own: TensorRtLlmOptions | None = None, source: Path | None = None, **options: Any) -> Manifest:
        """The manifest of a build."""
        return self.build(own, source, **options)[0]

    def record(self, own: TensorRtLlmOptions | None = None, **options: Any) -> TensorRtLlmRecord:
        """TensorRT-LLM's record in the manifest of a build."""
        return self.record_of(self.run(own, **options))

    @staticmethod
    def record_of(manifest: Manifest) -> TensorRtLlmRecord:
        """TensorRT-LLM's record in a manifest."""
        return TensorRtLlmRecord.of(manifest)

    def refusal(self, own: TensorRtLlmOptions | None = None, source: Path | None = None, **options: Any) -> str:
        """The one line that refuses a build, which leaves the repository as it was."""
        before = contents(self.repository)
        with pytest.raises(BuildError) as caught:
            self.run(own, source, **options)
        assert "\n" not in str(caught.value)
        assert contents(self.repository) == before
        assert not leftovers(self.repository)
        return str(caught.value)
