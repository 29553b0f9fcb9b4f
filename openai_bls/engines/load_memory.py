"""Memory that the load of an engine takes, as far as it can be told before it begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from openai_bls.core.checkpoint import GGUF_NAME, read_checkpoint, read_json
from openai_bls.core.manifest import EngineLoadError, Manifest, load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.llama_cpp.memory import bytes_per_token, kv_cache
from openai_bls.engines.llama_cpp.options import LlamaCppOptions, with_settings
from openai_bls.engines.registry import parse_options
from openai_bls.engines.vllm.startup.kv_cache import cpu_kv_cache_bytes

_MIB = 1 << 20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_PROCESS_BYTES = {"transformers": 512 * _MIB, "llama_cpp": 256 * _MIB, "vllm": 3072 * _MIB, "tensorrt_llm": 3072 * _MIB}
"""Libraries and buffers of an engine's processes."""
_CUDA_BYTES = 2048 * _MIB
"""Memory of the machine that a process with a GPU takes, whose weights are mapped from their files."""
EMBEDDED_CPU_CACHE_BYTES = 256 * _MIB
"""KV cache of the embedded engine on a CPU, if a sequence of the longest length does not need more."""
_NO_GPU = ("", "-1", "NoDevFiles")
_GPUS = Path("/proc/driver/nvidia/gpus")


class LoadMemory(NamedTuple):
    """Memory that an engine takes while it loads."""

    host_bytes: int
    """Bytes of the machine's memory at most; an estimate."""
    on_gpu: bool = False
    """Whether the size of its KV cache is a share of the free GPU memory."""


def load_memory(version_dir: Path, overrides: Mapping[str, str], settings: EngineSettings) -> LoadMemory:
    """Memory of the engine in `version_dir`; none for the null engine, or where the load will fail at once.

    Args:
        version_dir: a version folder of the model `tensorrt_llm`.
        overrides: options of the engine from the environment, as strings.
        settings: settings of the model.
    """
    try:
        manifest = load_manifest(version_dir)
        kind = overrides.get("engine", "auto")
        kind = manifest.engine if kind == "auto" else kind
        if kind not in _PROCESS_BYTES:
            return LoadMemory(0)
        if kind == "llama_cpp":
            options = parse_options(overrides)[1]["llama_cpp"]
            assert isinstance(options, LlamaCppOptions)
            manifest = with_settings(options, settings).over(manifest)
        # llama.cpp runs on the CPU alone.
        on_cpu = kind == "llama_cpp" or overrides.get("device") == "cpu"
        if not on_cpu and gpu_is_visible(os.environ):
            return LoadMemory(_PROCESS_BYTES[kind] + _CUDA_BYTES, on_gpu=True)
        return LoadMemory(_PROCESS_BYTES[kind] + _on_cpu(version_dir, manifest))
    except (EngineLoadError, OSError):
        return LoadMemory(0)


def gpu_is_visible(environ: Mapping[str, str], gpus: Path = _GPUS) -> bool:
    """True if there is a GPU that CUDA_VISIBLE_DEVICES does not hide, by what the driver says alone."""
    return environ.get("CUDA_VISIBLE_DEVICES", "all") not in _NO_GPU and gpus.is_dir() and any(gpus.iterdir())


def _on_cpu(version_dir: Path, manifest: Manifest) -> int:
    folder = version_dir / manifest.checkpoint
    facts = read_checkpoint(folder)
    weights = sum(record.size for name, record in manifest.files.items() if name.endswith(_WEIGHTS))
    if manifest.engine == "llama_cpp":
        return weights + kv_cache(manifest, facts, folder / GGUF_NAME).tokens * bytes_per_token(facts)
    if manifest.engine == "vllm":
        cache = cpu_kv_cache_bytes(facts.kv_bytes_per_token, manifest.max_batch_size * manifest.max_model_len)
    else:
        cache = max(facts.kv_bytes_per_token * manifest.max_model_len, EMBEDDED_CPU_CACHE_BYTES)
    # Kept in 16 bits, and computed with in 32.
    return weights * (2 if manifest.dtype in ("auto", "float32") and not _is_float32(folder) else 1) + cache


def _is_float32(folder: Path) -> bool:
    config = read_json(folder / "config.json")
    return config.get("dtype", config.get("torch_dtype")) == "float32"
