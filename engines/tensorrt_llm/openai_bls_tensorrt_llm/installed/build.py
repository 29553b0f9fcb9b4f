"""Build of an engine by the LLM API, from a checkpoint's directory to `LLM.save`."""

from __future__ import annotations

import logging
from typing import Any

from openai_bls.core.manifest import EngineLoadError
from openai_bls_tensorrt_llm.installed.interface import BuildSpec, Flow
from openai_bls_tensorrt_llm.installed.module import TensorRtLlm, option_names

logger = logging.getLogger(__name__)

_LLMAPI = "tensorrt_llm.llmapi"
_FLOW: Flow = "tensorrt"
# The LLM API loads what it built, at once; the cache need not hold more than it takes to start.
_KV_CACHE_TOKENS = 2048
_TRUE_OR_NONE = ("paged_kv_cache",)
"""Plugin options that are true, false or unset, and unset at first."""


def build(package: TensorRtLlm, spec: BuildSpec) -> None:
    """An engine in `spec.output`.

    Raises:
        EngineLoadError: this version cannot build it so; one sentence.
    """
    world_size = spec.tensor_parallel_size * spec.pipeline_parallel_size
    if spec.workers not in (1, world_size):
        raise EngineLoadError(
            f"--workers {spec.workers} cannot be had: TensorRT-LLM's LLM API builds an engine's {world_size} "
            f"rank{'s' if world_size > 1 else ''} side by side, each on its GPU; leave it out"
        )
    arguments = _arguments(package, spec)
    package.require_fields("LLM", package.llm_fields(_FLOW), arguments)
    logger.info("building %s with TensorRT-LLM %s", spec.model, package.version_text)
    llm = package.llm_class(_FLOW)(str(spec.model), **arguments)
    try:
        llm.save(str(spec.output))
    finally:
        # Else the process does not end.
        llm.shutdown()


def _arguments(package: TensorRtLlm, spec: BuildSpec) -> dict[str, Any]:
    """Arguments of `LLM`, besides the model."""
    kv_cache_tokens = min(spec.max_seq_len, _KV_CACHE_TOKENS) * spec.max_beam_width
    arguments: dict[str, Any] = {
        # The engine gets the checkpoint's tokenizer all the same.
        "skip_tokenizer_init": True,
        "trust_remote_code": spec.trust_remote_code,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "pipeline_parallel_size": spec.pipeline_parallel_size,
        "dtype": spec.dtype,
        "workspace": str(spec.workspace),
        "build_config": _build_config(package, spec),
        "kv_cache_config": package.make(package.name(f"{_LLMAPI}.KvCacheConfig"), max_tokens=kv_cache_tokens),
    }
    if spec.gather_logits:
        arguments["gather_generation_logits"] = True
    if spec.quant_algorithm or spec.kv_cache_dtype != "auto":
        arguments["quant_config"] = _quant_config(package, spec)
        arguments["calib_config"] = _calib_config(package, spec)
    return arguments


def _build_config(package: TensorRtLlm, spec: BuildSpec) -> Any:
    # Limits of `LLM` itself do not reach a build that has this.
    values: dict[str, Any] = {
        "max_batch_size": spec.max_batch_size,
        "max_input_len": spec.max_input_len,
        "max_seq_len": spec.max_seq_len,
        "max_num_tokens": spec.max_num_tokens,
        "max_beam_width": spec.max_beam_width,
        "gather_generation_logits": spec.gather_logits,
    }
    if spec.lora_dirs or spec.max_lora_rank:
        values["lora_config"] = package.make(
            package.lora_config(),
            lora_dir=[str(path) for path in spec.lora_dirs],
            lora_target_modules=list(spec.lora_target_modules),
            max_lora_rank=spec.max_lora_rank or 64,
        )
    config = package.make(package.name(f"{_LLMAPI}.BuildConfig"), **values)
    plugins = dict(spec.plugins)
    if spec.multiple_profiles:
        plugins["multiple_profiles"] = "enable"
    if spec.lora_dirs or spec.max_lora_rank:
        plugins.setdefault("lora_plugin", "auto")
    for name, text in plugins.items():
        _set_plugin(package, config.plugin_config, name, text)
    return config


def _set_plugin(package: TensorRtLlm, config: Any, name: str, text: str) -> None:
    # Its dtype is the model's.
    if name not in option_names(config) - {"dtype"}:
        raise EngineLoadError(f"TensorRT-LLM {package.version_text} has no plugin option {name}")
    try:
        setattr(config, name, _plugin_value(name, getattr(config, name), text))
    except (AssertionError, ValueError, TypeError) as error:
        raise EngineLoadError(f"plugin option {name}: {text!r} is refused: {_reason(error)}") from None


def _plugin_value(name: str, current: Any, text: str) -> Any:
    """`enable`, `disable`, a number format, `auto` or a number, as trtllm-build has them."""
    if isinstance(current, bool) or name in _TRUE_OR_NONE:
        if text not in ("enable", "disable"):
            raise ValueError("it is enable or disable")
        return text == "enable"
    if isinstance(current, int):
        return int(text)
    return None if text == "disable" else text


def _quant_config(package: TensorRtLlm, spec: BuildSpec) -> Any:
    algorithms = package.name(f"{_LLMAPI}.QuantAlgo")
    values: dict[str, Any] = {}
    if spec.quant_algorithm:
        values["quant_algo"] = _algorithm(package, algorithms, spec.quant_algorithm, "--quant")
    if spec.kv_cache_dtype != "auto":
        name = spec.kv_cache_dtype.upper()
        values["kv_cache_quant_algo"] = _algorithm(package, algorithms, name, "--kv-cache-dtype")
    return package.make(package.name(f"{_LLMAPI}.QuantConfig"), **values)


def _algorithm(package: TensorRtLlm, algorithms: Any, name: str, option: str) -> Any:
    found = getattr(algorithms, name, None)
    if found is None:
        raise EngineLoadError(f"{option}: TensorRT-LLM {package.version_text} has no {name}")
    return found


def _calib_config(package: TensorRtLlm, spec: BuildSpec) -> Any:
    values: dict[str, Any] = {
        "calib_batches": spec.calib_size,
        "calib_batch_size": 1,
        "calib_max_seq_length": spec.calib_max_seq_length,
    }
    if spec.calib_dataset:
        values["calib_dataset"] = spec.calib_dataset
    return package.make(package.name(f"{_LLMAPI}.CalibConfig"), **values)


def _reason(error: Exception) -> str:
    """The line that says what is wrong: of an assertion the last one, of pydantic's the one before its address."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line.partition(" [type=")[0] for line in lines if line and not line.startswith("For further information")]
    return told[-1] if told else type(error).__name__
