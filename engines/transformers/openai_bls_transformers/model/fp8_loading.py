"""Loading of a model with weights in FP8: quantized here, or FP8 already in the checkpoint.

transformers loads a checkpoint in FP8 as if its weights were numbers of the model's own type, which hold every e4m3
number exactly, and knows nothing of scales. So names and conversions are its own; then each such layer gets its weight
back in FP8, and its scale from the file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from openai_bls.core import fp8_checkpoint
from openai_bls.core.checkpoint import read_json, safetensors_header
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls_transformers import fp8_numbers
from openai_bls_transformers.model import fp8_layers, quant_distance
from openai_bls_transformers.record import EmbeddedRecord

logger = logging.getLogger(__name__)


def config_without_quantization(folder: Path, *, trust_remote_code: bool) -> Any:
    """Configuration by which transformers loads an FP8 checkpoint as if it were none; None for other checkpoints."""
    if fp8_checkpoint.quantization(read_json(folder / "config.json")) is None:
        return None
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    for part in (config, config.get_text_config(decoder=True)):
        part.__dict__.pop("quantization_config", None)
    if config.get_text_config(decoder=True).dtype is None:
        # Else transformers takes that of the first tensor.
        config.dtype = torch.bfloat16
    return config


@contextlib.contextmanager
def unreported_scales(config: Any) -> Iterator[None]:
    """Keep transformers from warning of the scales, which it has no use for, while it loads by such a `config`."""
    level = transformers.utils.logging.get_verbosity()
    if config is not None:
        transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(level)


def finish(model: Any, folder: Path, manifest: Manifest, device: torch.device, *, stored: bool) -> None:
    """Give `model` its weights in FP8, on `device`, if it is to have any.

    Args:
        model: model that transformers loaded on the CPU.
        folder: folder of the checkpoint.
        manifest: manifest, which says whether the model is to be quantized.
        device: device that the model will run on.
        stored: the checkpoint is in FP8.

    Raises:
        EngineLoadError: it cannot be had.
    """
    own = EmbeddedRecord.of(manifest)
    if not (stored or own.quant):
        return
    problem = fp8_numbers.refusal(device, model.dtype)
    if problem is not None:
        raise EngineLoadError(f"weights in FP8 cannot be used here: {problem}")
    if stored:
        count = restore(model, folder, device)
    elif own.self_test is not None:
        count = fp8_layers.quantize(model, device)
    else:
        count = _quantize_and_compare(model, folder, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of the weights that were rounded
    logger.info("%d linear layers have weights in FP8", count)


def _quantize_and_compare(model: Any, folder: Path, device: torch.device) -> int:
    """Quantize `model`, and keep its distance from what it was with it, where the device has room for both in turn."""
    ids = quant_distance.text_ids(folder.parent)
    before: torch.Tensor | None = None
    if ids:
        try:
            before = quant_distance.logprobs(model.to(device), ids)
        except torch.OutOfMemoryError:
            model.to("cpu")
            logger.warning("the distance of FP8 is not measured: the model does not fit without it")
    count: int = fp8_layers.quantize(model, device)
    if ids and before is not None:
        model.quant_distance = quant_distance.measure(before, quant_distance.logprobs(model.to(device), ids), ids)
    return count


@torch.no_grad()  # type: ignore[untyped-decorator]
def restore(model: Any, folder: Path, device: torch.device) -> int:
    """Turn the weights that `folder` has in FP8 back to it; returns how many.

    Raises:
        EngineLoadError: one is of no linear layer.
    """
    files = sorted(folder.glob("*.safetensors"))
    headers = {path: safetensors_header(path) for path in files}
    names = fp8_checkpoint.scale_names({name: about for held in headers.values() for name, about in held.items()})
    scales: dict[str, torch.Tensor] = {}
    for path, held in headers.items():
        with safe_open(path, framework="pt") as file:
            scales.update({name: file.get_tensor(name) for name in set(names.values()) & held.keys()})
    layers = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    for name, scale_name in names.items():
        found = _path_of(name.removesuffix(".weight"), layers)
        weight, scale = layers[found].weight, scales[scale_name].float().reshape(-1, 1)
        scale = scale.expand(weight.shape[0], 1).contiguous()
        if fp8_layers.is_aligned(layers[found]) and layers[found] is not model.get_output_embeddings():
            fp8_layers.replace(model, found, weight.to(device).to(fp8_numbers.FP8), scale.to(device))
        else:
            weight.data = (weight.float() * scale).to(weight.dtype)
    return len(names)


def _path_of(name: str, layers: dict[str, Any]) -> str:
    """Path of the layer whose weight a checkpoint calls `name`: the text part of a model may have lost a prefix."""
    if name in layers:
        return name
    found = [path for path in layers if name.endswith(f".{path}") or path.endswith(f".{name}")]
    if len(found) != 1:
        raise EngineLoadError(f"the checkpoint has {name} in FP8, which is no linear layer of the model here")
    return found[0]
