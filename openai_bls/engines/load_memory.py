"""Memory that the load of an engine takes, as far as it can be told before it begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from openai_bls.core.checkpoint import CheckpointFacts, read_checkpoint, read_json
from openai_bls.core.manifest import EngineLoadError, Manifest, load_manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines import registry
from openai_bls.engines.plugin import LoadMemory, LoadRequest

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CUDA_BYTES = 2048 << 20
"""Memory of the machine that a process with a GPU takes, whose weights are mapped from their files."""
_NO_GPU = ("", "-1", "NoDevFiles")
_GPUS = Path("/proc/driver/nvidia/gpus")


def load_memory(version_dir: Path, overrides: Mapping[str, str], settings: EngineSettings) -> LoadMemory:
    """Memory of the engine in `version_dir`; none for an engine without an estimate, or where the load will fail at
    once.

    Args:
        version_dir: a version folder of the model `tensorrt_llm`.
        overrides: options of the engine from the environment, as strings.
        settings: settings of the model.
    """
    try:
        manifest = load_manifest(version_dir)
        wanted, options = registry.parse_options(overrides)
        chosen = registry.plugin(manifest.engine if wanted == "auto" else wanted)
        if chosen.load_memory is None:
            return LoadMemory(0)
        gpu = gpu_is_visible(os.environ)
        return chosen.load_memory()(LoadRequest(version_dir, manifest, options.get(chosen.name), settings, gpu))
    except (EngineLoadError, OSError):
        return LoadMemory(0)


def gpu_is_visible(environ: Mapping[str, str], gpus: Path = _GPUS) -> bool:
    """True if there is a GPU that CUDA_VISIBLE_DEVICES does not hide, by what the driver says alone."""
    return environ.get("CUDA_VISIBLE_DEVICES", "all") not in _NO_GPU and gpus.is_dir() and any(gpus.iterdir())


def of_checkpoint(
    request: LoadRequest, process_bytes: int, cache_bytes: Callable[[CheckpointFacts], int] = lambda _: 0
) -> LoadMemory:
    """Estimate for an engine that loads the weights of a checkpoint.

    Args:
        request: load that is estimated.
        process_bytes: libraries and buffers of the engine's processes.
        cache_bytes: bytes of the KV cache on a CPU.
    """
    if request.gpu:
        return LoadMemory(process_bytes + _CUDA_BYTES, on_gpu=True)
    manifest, folder = request.manifest, request.version_dir / request.manifest.checkpoint
    # Kept in 16 bits, and computed with in 32.
    factor = 2 if manifest.dtype in ("auto", "float32") and not _is_float32(folder) else 1
    return LoadMemory(process_bytes + weight_bytes(manifest) * factor + cache_bytes(read_checkpoint(folder)))


def weight_bytes(manifest: Manifest) -> int:
    """Bytes of the files with weights."""
    return sum(record.size for name, record in manifest.files.items() if name.endswith(_WEIGHTS))


def _is_float32(folder: Path) -> bool:
    config = read_json(folder / "config.json")
    return config.get("dtype", config.get("torch_dtype")) == "float32"
