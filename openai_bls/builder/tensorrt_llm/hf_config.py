"""Config.json of a Hugging Face checkpoint, with what ModelOpt writes beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.manifest import EngineLoadError, short

MODELOPT_FILE = "hf_quant_config.json"
"""ModelOpt's description of how it quantized a checkpoint."""


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json in `folder`, with the file of ModelOpt (which TensorRT-LLM prefers) as `quantization_config`.

    Raises:
        EngineLoadError: there is no config.json that can be read.
    """
    if not (folder / "config.json").is_file():
        raise EngineLoadError(f"{short(folder)} is not a Hugging Face checkpoint: it has no config.json")
    config = _read_object(folder / "config.json")
    beside = folder / MODELOPT_FILE
    if beside.is_file():
        told = _read_object(beside).get("quantization")
        if isinstance(told, dict):
            config["quantization_config"] = {**told, "quant_method": "modelopt", "told_by": MODELOPT_FILE}
    return config


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise EngineLoadError(f"cannot read {short(path)}: {error}") from None
    if not isinstance(value, dict):
        raise EngineLoadError(f"{short(path)} is not a JSON object")
    return value


def first_architecture(config: dict[str, Any]) -> str:
    """First of config.json's `architectures`; empty if it names none."""
    listed = config.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else ""
