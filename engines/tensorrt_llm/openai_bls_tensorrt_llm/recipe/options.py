"""Options of a TensorRT-LLM engine, and the flows in which each has a meaning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from openai_bls.builder.options.yaml_file import read_yaml
from openai_bls.core.manifest import BuildError, Positive
from openai_bls.core.settings import EngineSettings
from openai_bls.triton_models.tensors.declaration import Queue
from openai_bls_tensorrt_llm.installed.interface import Flow, KvCacheDtype, Quant
from openai_bls_tensorrt_llm.recipe.quantizations import BUILT, QUANTIZATIONS

TritonBackend = Literal["python", "cpp"]

QUANT_SYNONYMS: dict[str, Quant] = {
    "fp8_per_channel_per_token": "fp8_rowwise", "fp8_block_scales": "fp8_block",
    "int8": "int8_weight_only", "w8a16": "int8_weight_only", "int8_wo": "int8_weight_only",
    "int4": "int4_weight_only", "w4a16": "int4_weight_only", "int4_wo": "int4_weight_only",
    "smoothquant": "int8_sq", "sq": "int8_sq", "w8a8_sq": "int8_sq", "w8a8_sq_per_channel": "int8_sq",
    "int4_awq": "awq", "w4a16_awq": "awq",
    "int4_gptq": "gptq", "w4a16_gptq": "gptq", "w8a16_gptq": "int8_gptq",
}  # fmt: skip
"""Spellings of guides and of `QuantAlgo`, in lower case with underscores."""

# Data sets that TensorRT-LLM knows by name; any other has to be a directory.
_DATASETS = ("cnn_dailymail", "pileval", "lambada")


class TensorRtLlmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of TensorRT-LLM alone. None leaves a choice to `planning`."""

    flow: Flow | None = None
    """None leaves it to the installed version, the model and the other options (`planning.default_flow`)."""
    backend: TritonBackend = "python"
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    max_input_len: Positive | None = None
    max_output_len: Positive | None = None
    max_num_tokens: Positive | None = None
    max_beam_width: Positive = 1
    quant: Quant | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    calib_dataset: str = ""
    calib_size: Positive | None = None
    """Texts; None is 512, or as many as TensorRT-LLM takes."""
    workers: Positive = 1
    plugins: dict[str, str] = {}
    """`PluginConfig` fields by their names."""
    multiple_profiles: bool = False
    gather_logits: bool = False
    extra_llm_api_options: dict[str, Any] = {}
    """Contents of the YAML file, not checked."""
    settings: EngineSettings = EngineSettings()
    """Written into config.pbtxt."""
    cpp_parameters: dict[str, str] = {}
    """Further ones of the C++ backend, by its names."""
    queue: Queue | None = None
    workspace: Path | None = None
    """Scratch space; None is in the repository."""
    keep_workspace: bool = False


# Names of options by where they have a meaning; what is not listed has one with every engine.
_TENSORRT_FLOW = {
    "quant", "calib_dataset", "calib_size", "workers", "plugin", "gemm_plugin", "gpt_attention_plugin",
    "use_paged_context_fmha", "use_fp8_context_fmha", "use_custom_all_reduce", "multiple_profiles", "gather_logits",
    "workspace", "keep_workspace",
}  # fmt: skip
_CPP_BACKEND = {"cpp_parameter", "max_queue_delay", "max_queue_size"}
_PYTORCH_FLOW = {"extra_llm_api_options"}
TENSORRT_LLM_ONLY = _TENSORRT_FLOW | _PYTORCH_FLOW | _CPP_BACKEND | {
    "flow", "backend", "pp_size", "max_input_len", "max_output_len", "max_num_tokens", "max_beam_width",
    "kv_cache_dtype", "gpu", "gpu_memory", "kv_cache_free_gpu_mem_fraction",
    "kv_cache_host_memory_bytes", "enable_kv_cache_reuse", "max_attention_window_size", "enable_chunked_context",
    "batch_scheduler_policy", "guided_decoding_backend",
}  # fmt: skip
_INSTEAD = {
    "quant": "it takes a checkpoint that is quantized already, as it is",
    "gather_logits": "it gives log-probabilities as it is",
    "calib_dataset": "it quantizes nothing",
    "calib_size": "it quantizes nothing",
}


def refuse_meaningless(given: Collection[str], flow: Flow | None, backend: str) -> None:
    """Refuse options that mean nothing for what is to be built.

    Args:
        given: names of options, with underscores.
        flow: flow of TensorRT-LLM; None while it is not known.
        backend: backend of Triton.

    Raises:
        BuildError: the first such option, and what it is for.
    """
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if name in _CPP_BACKEND and backend != "cpp":
            raise BuildError(f"{option} is for --backend cpp: requests reach our own model.py past Triton's queue")
        if name in _TENSORRT_FLOW and flow == "pytorch":
            why = _INSTEAD.get(name, "it builds nothing")
            raise BuildError(f"{option} is for --flow tensorrt: the PyTorch flow does not know it, {why}")
        if name in _PYTORCH_FLOW and flow == "tensorrt":
            raise BuildError(f"{option} is for --flow pytorch: an engine has its options in it when it is built")


def read_options(values: dict[str, Any]) -> TensorRtLlmOptions:
    """Options from the command line's values by their names there, of which those not given are absent.

    The size of the KV cache is taken out of them: it is a setting of config.pbtxt.

    Raises:
        BuildError: a bad value, or two that contradict each other.
    """
    renamed = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
    fields = set(TensorRtLlmOptions.__struct_fields__) - {
        "settings", "queue", "plugins", "quant", "flow", "extra_llm_api_options"
    }  # fmt: skip
    own = {renamed.get(name, name): value for name, value in values.items() if renamed.get(name, name) in fields}
    if values.get("flow", "auto") != "auto":
        own["flow"] = values["flow"]
    if "quant" in values:
        own["quant"] = read_quant(values["quant"])
    own["plugins"] = _plugins(values)
    own["cpp_parameters"] = _pairs("--cpp-parameter", values.get("cpp_parameter", ()))
    if "extra_llm_api_options" in values:
        own["extra_llm_api_options"] = read_yaml("--extra-llm-api-options", values["extra_llm_api_options"])
    settings = {name: values[name] for name in EngineSettings.__struct_fields__ if name in values}
    if "max_tokens_in_kv_cache" in values:
        settings["max_tokens_in_paged_kv_cache"] = values.pop("max_tokens_in_kv_cache") or None
    delay, size = values.get("max_queue_delay"), values.get("max_queue_size")
    if delay is not None or size is not None:
        own["queue"] = Queue(_not_negative("--max-queue-delay", delay), _not_negative("--max-queue-size", size))
    try:
        own["settings"] = msgspec.convert(settings, EngineSettings)
        options = TensorRtLlmOptions(**own)
        _check(msgspec.convert(msgspec.structs.asdict(options), TensorRtLlmOptions))
    except msgspec.ValidationError as error:
        raise BuildError(f"bad option: {_in_words(str(error))}") from None
    refuse_meaningless(values, options.flow, options.backend)
    return options


def with_flow(options: TensorRtLlmOptions, flow: Flow) -> TensorRtLlmOptions:
    """`options` with the flow that was found, where it was left open.

    Raises:
        BuildError: one of them has no meaning with it.
    """
    refuse_meaningless(_given(options), flow, options.backend)
    found = msgspec.structs.replace(options, flow=flow)
    _check(found)
    return found


def engine_only(options: TensorRtLlmOptions) -> list[str]:
    """Options that were given and that only --flow tensorrt has, as on the command line."""
    found = [f"--{name.replace('_', '-')}" for name in _given(options) if name in _TENSORRT_FLOW]
    if options.backend == "cpp":
        found.append("--backend cpp")
    if options.kv_cache_dtype == "int8":
        found.append("--kv-cache-dtype int8")
    return found


def _given(options: TensorRtLlmOptions) -> list[str]:
    default = TensorRtLlmOptions()
    changed = [name for name in options.__struct_fields__ if getattr(options, name) != getattr(default, name)]
    return ["plugin" if name == "plugins" else name for name in changed]


def read_quant(text: str) -> Quant:
    """The quantization of this name, in any of its usual spellings.

    Raises:
        BuildError: there is none, or no build can make it.
    """
    name = text.lower().replace("-", "_")
    found = QUANT_SYNONYMS.get(name, name)
    if found not in get_args(Quant):
        raise BuildError(f"--quant {text} is not known: give one of {', '.join(BUILT)}")
    quant: Quant = found  # type: ignore[assignment]  # as was just seen
    if QUANTIZATIONS[quant].refusal:
        raise BuildError(f"--quant {text}: {QUANTIZATIONS[quant].refusal}")
    return quant


def _check(options: TensorRtLlmOptions) -> None:
    if options.backend == "cpp" and options.flow == "pytorch":
        raise BuildError("--backend cpp runs engines of --flow tensorrt only: leave one of the two out")
    if options.keep_workspace and options.workspace is None:
        raise BuildError("--keep-workspace needs --workspace DIR: the one in the repository does not stay")
    if options.calib_dataset and not Path(options.calib_dataset).expanduser().is_dir():
        name = options.calib_dataset
        if name.startswith((".", "/", "~")) or not any(known in name for known in _DATASETS):
            raise BuildError(
                f"--calib-dataset {name} is neither a directory (with a split `train` and a column `text`) "
                f"nor a data set that TensorRT-LLM knows: {', '.join(_DATASETS)}"
            )
    if options.flow == "pytorch" and options.kv_cache_dtype == "int8":
        raise BuildError("--kv-cache-dtype int8 is for --flow tensorrt: the PyTorch flow has auto and fp8")
    if options.flow == "tensorrt" and options.kv_cache_dtype == "nvfp4":
        raise BuildError("--kv-cache-dtype nvfp4 is for --flow pytorch: engines have auto, fp8 and int8")


def _plugins(values: Mapping[str, Any]) -> dict[str, str]:
    """`PluginConfig` fields, whichever option they came by."""
    named = {name: str(values[name]) for name in ("gemm_plugin", "gpt_attention_plugin") if name in values}
    for name in ("use_paged_context_fmha", "use_fp8_context_fmha", "use_custom_all_reduce"):
        if name in values:
            named[name] = "enable" if values[name] else "disable"
    free = _pairs("--plugin", values.get("plugin", ()))
    twice = sorted(set(named) & set(free))
    if twice:
        raise BuildError(f"--plugin {twice[0]} is given by an option of its own too: leave one of the two out")
    return named | free


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BuildError(f"{option} {text} is not NAME=VALUE")
        if name in pairs:
            raise BuildError(f"{option} {name} is given twice")
        pairs[name] = value
    return pairs


def _not_negative(option: str, value: int | None) -> int:
    if value is not None and value < 0:
        raise BuildError(f"{option} {value} is negative")
    return value or 0


def _in_words(error: str) -> str:
    """msgspec's message with the option's name: `Expected ... - at `$.max_input_len``."""
    what, _, where = error.partition(" - at `$.")
    if where == "max_attention_window_size`":
        what = "a number of tokens is needed, or several separated by commas"
    name = {"tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size"}.get(
        where.rstrip("`"), where.rstrip("`")
    )
    return f"--{name.replace('_', '-')}: {what[:1].lower()}{what[1:]}" if where else error
