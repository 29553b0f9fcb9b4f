"""Interpreter with a vLLM of a few lines: versions, devices and refusals that the real one here does not have."""

from __future__ import annotations

import sys
from pathlib import Path

ARG_UTILS = """\
import dataclasses
from types import SimpleNamespace

@dataclasses.dataclass
class AsyncEngineArgs:
    model: str = ""
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    nnodes: int = 1
    max_num_seqs: int = 1
    max_model_len: int = 777
    dtype: str = "auto"
    quantization: str = None
    runner: str = "auto"
    convert: str = "auto"
    gpu_memory_utilization: float = 0.9

    def create_model_config(self):
        if self.quantization == "none":
            raise ValueError(
                "1 validation error for ModelConfig\\n"
                "  Value error, Unknown quantization method: none. [type=value_error, input_value=..."
            )
        return SimpleNamespace(
            max_model_len=self.max_model_len, architecture="Tiny", dtype="torch." + self.dtype, quantization=None
        )
"""
PLATFORMS = """\
class current_platform:
    device_type = {kind!r}
    device_count = staticmethod(lambda: {count})
    get_device_name = staticmethod(lambda number: "Small GPU")
    get_device_capability = staticmethod(lambda number: None)
    get_device_total_memory = staticmethod(lambda number: {memory})
"""


def make_interpreter(folder: Path, version: str = "0.32.0", *, gpus: int = 0, memory: int = 1 << 30) -> Path:
    """A command that is Python with a vLLM of this version, on a CPU or on GPUs of `memory` bytes."""
    package = folder / "packages" / "vllm"
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (package / "engine" / "__init__.py").touch()
    (package / "engine" / "arg_utils.py").write_text(ARG_UTILS)
    kind = "cuda" if gpus else "cpu"
    (package / "platforms.py").write_text(PLATFORMS.format(kind=kind, count=gpus, memory=memory))
    record = folder / "packages" / f"vllm-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "packages"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python
