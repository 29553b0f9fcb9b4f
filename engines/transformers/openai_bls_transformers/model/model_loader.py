"""Model loader of the embedded engine: the checkpoint on its device."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
import transformers

from openai_bls.core.checkpoint import missing_weights
from openai_bls.core.manifest import EngineLoadError, Manifest, first_line
from openai_bls_transformers.gpu import kernel_compiler
from openai_bls_transformers.model import attention_cpu, attention_eager, fp8_loading, time_steps
from openai_bls_transformers.options import EngineOptions

logger = logging.getLogger(__name__)


def _cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(options: EngineOptions) -> int:
    """CPU threads for the model's arithmetic."""
    return options.num_threads or max(1, _cores() // 2)


def find_device(wanted: str) -> torch.device:
    """The device named by `EngineOptions.device`; raises `EngineLoadError` if it is not there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise EngineLoadError(f"device is {wanted}, but this machine has no usable GPU")
    return torch.device(wanted)


def load_model(folder: Path, manifest: Manifest, options: EngineOptions, device: torch.device) -> Any:
    """The language model in `folder` on its device, with the attention asked for or its class's own default, and with
    its vision tower if its prompts may hold images.

    Raises:
        EngineLoadError: it does not load.
    """
    asked = options.attention
    if device.type == "cpu" and asked in ("paged", "varlen"):
        raise EngineLoadError(f"attention {asked} is for GPUs")
    # TF32, in which cuDNN may compute convolutions, is too coarse for a vision tower in float32.
    torch.backends.cudnn.allow_tf32 = False
    attention_cpu.install()
    attention_eager.install()
    # Kernels that go with paged attention, where that may be used, are compiled while the weights are read.
    compiles = device.type == "cuda" and asked in ("auto", "paged") and not manifest.max_images
    with kernel_compiler.compiling(folder, manifest, device) if compiles else contextlib.nullcontext():
        return read_model(folder, manifest, device, None if asked in ("auto", "paged", "varlen") else asked)


def read_model(folder: Path, manifest: Manifest, device: torch.device, implementation: str | None) -> Any:
    """The model with one of transformers' own implementations of attention; raises `EngineLoadError`."""
    dtype = manifest.dtype
    if dtype == "auto" and device.type == "cpu":
        dtype = "float32"
    auto = transformers.AutoModelForImageTextToText if manifest.max_images else transformers.AutoModelForCausalLM
    transformers.utils.logging.disable_progress_bar()
    try:
        unquantized = fp8_loading.config_without_quantization(folder, trust_remote_code=manifest.trust_remote_code)
        # Without `device_map`, which needs the package accelerate: the weights are mapped from their files, and the GPU
        # holds one copy.
        with fp8_loading.unreported_scales(unquantized):
            model, info = auto.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=implementation,
                trust_remote_code=manifest.trust_remote_code,
                local_files_only=True,
                output_loading_info=True,
                **({} if unquantized is None else {"config": unquantized}),
            )
        if problem := missing_weights(info["missing_keys"]):
            # transformers would draw them at random, with a warning.
            raise ValueError(problem)
        fp8_loading.finish(model, folder, manifest, device, stored=unquantized is not None)
        time_steps.hold(model)
        return model.to(device).eval()
    except EngineLoadError:
        raise
    except Exception as error:
        logger.exception("loading the checkpoint failed")
        raise EngineLoadError(f"the checkpoint does not load: {first_line(error)}") from None
