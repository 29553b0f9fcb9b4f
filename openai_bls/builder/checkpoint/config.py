"""Config.json of a Hugging Face checkpoint, with what ModelOpt writes next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai_bls.core.checkpoint import read_json
from openai_bls.core.manifest import BuildError

MODELOPT_FILE = "hf_quant_config.json"
"""ModelOpt's description of how it quantized a checkpoint."""


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json in `folder`, with the file of ModelOpt (which TensorRT-LLM prefers) as `quantization_config`.

    Raises:
        BuildError: there is no config.json that can be read.
    """
    if not (folder / "config.json").is_file():
        raise BuildError(f"{folder} is not a Hugging Face checkpoint: it has no config.json")
    config = read_json(folder / "config.json")
    beside = folder / MODELOPT_FILE
    if beside.is_file():
        told = read_json(beside).get("quantization")
        if isinstance(told, dict):
            config["quantization_config"] = {**told, "quant_method": "modelopt", "told_by": MODELOPT_FILE}
    return config


def first_architecture(config: dict[str, Any]) -> str:
    """First of config.json's `architectures`; empty if it names none."""
    listed = config.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else ""
