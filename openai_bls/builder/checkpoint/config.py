"""Config.json of a Hugging Face checkpoint, with what ModelOpt writes next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openai_bls.core.checkpoint import read_json
from openai_bls.core.manifest import BuildError, first_line

MODELOPT_FILE = "hf_quant_config.json"
"""ModelOpt's description of how it quantized a checkpoint."""


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json in `folder`, with the file of ModelOpt (which TensorRT-LLM prefers) as `quantization_config`.

    Raises:
        BuildError: there is no config.json that can be read.
    """
    if not (folder / "config.json").is_file():
        raise BuildError(f"{folder} is not a Hugging Face checkpoint: it has no config.json")
    return with_modelopt(read_json(folder / "config.json"), folder)


def with_modelopt(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Contents of the config.json in `folder`, with ModelOpt's description as `quantization_config`."""
    path = folder / MODELOPT_FILE
    told = read_json(path).get("quantization") if path.is_file() else None
    if not isinstance(told, dict):
        return config
    return {**config, "quantization_config": {**told, "quant_method": "modelopt", "told_by": MODELOPT_FILE}}


def require_config(source: Path, config: dict[str, Any]) -> None:
    """Check the fields of a config.json by transformers' class for its model, where it has one.

    Args:
        source: folder of the checkpoint.
        config: contents of config.json.

    Raises:
        BuildError: a field has another type than the class wants, or they contradict each other.
    """
    if "AutoConfig" in (config.get("auto_map") or {}):
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        return
    try:
        # Read by transformers again, which writes numbers that JSON lacks in a way of its own.
        config_class = CONFIG_MAPPING[model_type]
        config_class.from_dict(config_class.get_config_dict(source)[0])
    except (ValueError, OSError):
        # A newer release of it, in the interpreter of another engine, may take that.
        return
    except Exception as error:  # of a strict dataclass, or whatever a strange value makes of a class
        named = next((name for name in ("dtype", "torch_dtype") if f"'{config.get(name)}'" in str(error)), None)
        told = f"{named} is no type of torch, such as float32: " if named else ""
        raise BuildError(f"transformers does not take {source}/config.json: {told}{first_line(error)}") from None


def first_architecture(config: dict[str, Any]) -> str:
    """First of config.json's `architectures`; empty if it names none."""
    listed = config.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else ""
