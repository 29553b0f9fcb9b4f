"""Engines: what a build leaves in a folder, how it is told, and how it fails.

An engine of the fake is a folder that runs by itself: config.json with `build_config` and `pretrained_config` (and the
checkpoint's own in it), rank0.engine, rank1.engine ... with the weights as safetensors, and the tokenizer's files.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tensorrt_llm import _settings

# As far as the tests need them, of the families that TensorRT-LLM's own table names.
ARCHITECTURES = {
    "BaiChuanForCausalLM",
    "BaichuanForCausalLM",
    "ChatGLMForConditionalGeneration",
    "ChatGLMModel",
    "GemmaForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "QWenLMHeadModel",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
}


def log(text: str, level: str = "I") -> None:
    """A line as TensorRT-LLM's Python logger writes them."""
    stamp = time.strftime("%m/%d/%Y-%H:%M:%S")
    print(f"[{stamp}] [TRT-LLM] [{level}] {text}", flush=True)  # noqa: T201


def log_cpp(text: str, level: str = "INFO") -> None:
    """A line as its C++ parts write them."""
    print(f"[TensorRT-LLM][{level}] {text}", flush=True)  # noqa: T201


def is_engine(folder: Path) -> bool:
    """By what the real one goes: config.json has `pretrained_config` and `build_config`."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"Failed to infer model format because no config.json exists in {folder}")
    config = json.loads(path.read_text())
    return "pretrained_config" in config and "build_config" in config


def require_architecture(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json; raises NotImplementedError where there is no TensorRT model for it."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (architecture, *_) = config.get("architectures") or [""]
    if architecture not in ARCHITECTURES or _settings.failure("build") == "architecture":
        raise NotImplementedError(
            f"The given huggingface model architecture {architecture} is not supported in TRT-LLM yet"
        )
    return config


def build(model: Path, out: Path, args: Any) -> None:
    """An engine for the checkpoint `model` in `out`, with the noise of a real build."""
    steps = ("Loading HF model to memory", "Building TRT-LLM engine")
    config = require_architecture(model)
    what = _settings.failure("build")
    quant = args.quant_config
    algo = getattr(quant, "quant_algo", None)
    for number, label in enumerate(steps):
        _step(number, len(steps), label)
        if number == 0:
            if algo is not None and _needs_calibration(algo):
                _calibrate(args.calib_config)
            _bar("Loading weights", 4)
            continue
        world = args.tensor_parallel_size * args.pipeline_parallel_size
        out.mkdir(parents=True, exist_ok=True)
        _write_ranks(model, out, world, what)
        (out / "config.json").write_text(json.dumps(_config(config, args, world), indent=4, default=_plain))
        for path in sorted(model.glob("tokenizer*")):
            shutil.copy(path, out / path.name)
        log("Total time of building Unnamed Network 0: 00:00:12")
        log(f"Serializing engine to {out / 'rank0.engine'}...")
        log("Engine serialized. Total time: 00:00:01")
    print("Loading model done.", file=sys.stderr, flush=True)  # noqa: T201


def _step(number: int, count: int, label: str) -> None:
    print(f"Loading Model: [{number + 1}/{count}]\t{label}", file=sys.stderr, flush=True)  # noqa: T201


def _bar(label: str, count: int) -> None:
    for done in range(count + 1):
        text = f"{label}: {100 * done // count:3d}%|{'#' * done}{' ' * (count - done)}| {done}/{count}"
        print(text, end="\r" if done < count else "\n", file=sys.stderr, flush=True)  # noqa: T201


def _needs_calibration(algo: Any) -> bool:
    return str(getattr(algo, "value", algo)) in (
        "FP8",
        "NVFP4",
        "W4A16_AWQ",
        "W4A8_AWQ",
        "W8A8_SQ_PER_CHANNEL",
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    )


def _calibrate(calib: Any) -> None:
    if calib is None:
        raise ValueError("calib_config is needed")
    data = Path(calib.calib_dataset)
    if "/" in calib.calib_dataset and not data.is_dir():
        raise FileNotFoundError(f"Couldn't find any data file at {data}.")
    print("Inserted 339 quantizers", flush=True)  # noqa: T201
    _bar("Calibrating", min(calib.calib_batches, 8))


def _write_ranks(model: Path, out: Path, world: int, what: str | None) -> None:
    log("Build TensorRT engine Unnamed Network 0")
    if what == "tensorrt-out-of-memory":
        print("[TRT] [E] Error Code 2: OutOfMemory (Requested size was 2147483648 bytes.)", flush=True)  # noqa: T201
        log_cpp("Allocate 2147483648 bytes failed: CUDA error: out of memory", "ERROR")
        raise AssertionError("Engine building failed, please check the error log.")
    if what in ("crash", "kill"):
        (out / "rank0.engine").write_bytes(b"half an engine")
        _settings.crash(what)
    if what not in (None, "architecture"):
        raise RuntimeError(what)
    paths = sorted(model.glob("*.safetensors"))
    if _settings.scripted_tokens() is not None and not paths:
        for rank in range(world):
            (out / f"rank{rank}.engine").write_bytes(b"scripted")
        return
    from safetensors.torch import load_file, save_file

    tensors: dict[str, Any] = {}
    for path in paths:
        tensors.update(load_file(path))
    for rank in range(world):
        mine = {key: tensors[key] for number, key in enumerate(sorted(tensors)) if number % world == rank}
        save_file(mine, out / f"rank{rank}.engine")


def _config(config: dict[str, Any], args: Any, world: int) -> dict[str, Any]:
    quant = args.quant_config
    return {
        "version": _settings.version(),
        "pretrained_config": {
            "architecture": (config.get("architectures") or [""])[0],
            "dtype": args.dtype,
            "vocab_size": config.get("vocab_size"),
            "hidden_size": config.get("hidden_size"),
            "num_hidden_layers": config.get("num_hidden_layers"),
            "mapping": {
                "world_size": world,
                "tp_size": args.tensor_parallel_size,
                "pp_size": args.pipeline_parallel_size,
            },
            "quantization": {
                "quant_algo": getattr(quant, "quant_algo", None),
                "kv_cache_quant_algo": getattr(quant, "kv_cache_quant_algo", None),
            },
            "fake_checkpoint_config": config,
        },
        "build_config": dump(args.build_config),
    }


def dump(value: Any) -> dict[str, Any]:
    """The fields of a configuration object."""
    if hasattr(value, "model_dump"):
        found: dict[str, Any] = {key: getattr(value, key) for key in type(value).model_fields}
    elif dataclasses.is_dataclass(value):
        found = {item.name.lstrip("_"): getattr(value, item.name) for item in dataclasses.fields(value)}
    else:
        return dict(vars(value))
    return {key: dump(item) if _is_config(item) else item for key, item in found.items()}


def _is_config(value: Any) -> bool:
    return not isinstance(value, (type, enum.Enum)) and (
        hasattr(value, "model_dump") or dataclasses.is_dataclass(value)
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else str(value)


def unpack_config(engine: Path, out: Path) -> None:
    """The checkpoint's config.json again, for the model to be made from."""
    config = json.loads((engine / "config.json").read_text())["pretrained_config"]["fake_checkpoint_config"]
    (out / "config.json").write_text(json.dumps(config))
