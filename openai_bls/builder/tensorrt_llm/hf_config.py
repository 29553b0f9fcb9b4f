"""Reading a Hugging Face config.json: its numbers under any of their names, and what it says of quantisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.manifest import EngineLoadError, short

MODELOPT_FILE = "hf_quant_config.json"
"""Where ModelOpt says how it quantised a checkpoint."""


class StoredAs(msgspec.Struct, frozen=True):
    """How a checkpoint is quantised, in its own words."""

    form: str
    """Of `quantisation.CHECKPOINT_FORMS` if it is one of them: `gptq`, `fp8_block`, `ModelOpt NVFP4`."""
    kv_cache: str = ""
    """What the KV cache is quantised to, in the words of `contract.KvCacheDtype`; empty if it is not told."""
    inline: bool = False
    """Whether ModelOpt's words stand in config.json, and not in `MODELOPT_FILE`."""


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json in `folder`; what ModelOpt writes beside it is put in as `quantization_config`, as TensorRT-LLM
    goes by that first.

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


class Fields:
    """Reads whole numbers by any of the names that they have in some files."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def number(self, *names: str) -> int:
        """The first that is there; raises `EngineLoadError` if none is."""
        value = self.optional(*names)
        if value is None:
            also = f" (nor {' or '.join(names[1:])})" if len(names) > 1 else ""
            raise EngineLoadError(f"config.json has no usable {names[0]}{also}: the model's size cannot be worked out")
        return value

    def optional(self, *names: str) -> int | None:
        """The first that is there and positive, else None."""
        for name in names:
            value = self._config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None


def stretched(longest: int, config: dict[str, Any]) -> int:
    """The length `longest` with the scaling of positions that the file asks for.

    For llama3 and longrope it is in the number already.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return longest
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind not in ("linear", "dynamic", "yarn") or not isinstance(factor, int | float) or factor < 1:
        return longest
    if kind == "yarn":
        original = Fields(scaling).optional("original_max_position_embeddings") or longest
        return max(longest, int(original * factor))
    return int(longest * factor)


def quantization_of(config: dict[str, Any]) -> str:
    """What the checkpoint is quantised with, in the words of `contract.Quant` where it is one of them.

    Empty if it is not.
    """
    told = config.get("quantization_config")
    if not isinstance(told, dict):
        return ""
    method = _method(told)
    if method in _BY_BITS:
        bits = told.get("bits", told.get("w_bit", 4))
        return _BY_BITS[method].get(str(bits), f"{method} with {bits} bits")
    if method == "fp8":
        return "fp8_block" if told.get("weight_block_size") else "fp8"
    if method == "modelopt":
        algorithm = _algorithm(told)
        return _MODELOPT.get(algorithm, algorithm)
    return method


def stored_as(config: dict[str, Any]) -> StoredAs | None:
    """How the checkpoint is quantised; None if it is not."""
    told = config.get("quantization_config")
    if not isinstance(told, dict):
        return None
    method = _method(told)
    if method == "modelopt":
        cache = str(told.get("kv_cache_quant_algo") or "").lower()
        return StoredAs(
            f"ModelOpt {_algorithm(told)}", "" if cache in ("none", "null") else cache, "told_by" not in told
        )
    return StoredAs("fp8_block" if method == "fp8" and told.get("weight_block_size") else method)


def _method(told: dict[str, Any]) -> str:
    return str(told.get("quant_method") or ("modelopt" if told.get("quant_algo") else "an unnamed form")).lower()


def _algorithm(told: dict[str, Any]) -> str:
    algorithm = str(told.get("quant_algo") or "unknown").upper()
    # Two names of one thing.
    return "FP8_BLOCK_SCALES" if algorithm == "FP8_PB_WO" else algorithm


_BY_BITS = {"gptq": {"4": "gptq", "8": "int8_gptq"}, "awq": {"4": "awq"}}
_MODELOPT = {
    "FP8": "fp8",
    "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_rowwise",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "awq",
    "W4A8_AWQ": "w4a8_awq",
}
