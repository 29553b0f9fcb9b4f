"""Arguments of `LLM` from one YAML file, as trtllm-serve has it: recorded classes, check, objects (PyTorch flow).

`llm_args.json` has, by version, what of `TorchLlmArgs` and of the classes below it is passed on, with its types; a `!`
is required, a `?` may be null. Read from the sources of TensorRT-LLM 1.0, 1.1.0, 1.2.1, 1.3.0rc and 1.4.0rc1 that
tests_tensorrt_llm/contracts names; none of it was run with the real package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from openai_bls.core.manifest import EngineLoadError, first_line
from openai_bls.core.nearest import nearest
from openai_bls_tensorrt_llm.installed.interface import Version
from openai_bls_tensorrt_llm.installed.module import TensorRtLlm

OPTION = "--extra-llm-api-options"
_ROOT = "TorchLlmArgs"
SPECULATION = "speculative_config"

_OURS = {
    "model": "--model", "tensor_parallel_size": "--tp-size", "pipeline_parallel_size": "--pp-size", "dtype": "--dtype",
    "trust_remote_code": "--trust-remote-code", "max_batch_size": "--max-batch-size", "max_seq_len": "--max-seq-len",
    "max_input_len": "--max-input-len", "max_num_tokens": "--max-num-tokens", "max_beam_width": "--max-beam-width",
    "enable_chunked_prefill": "--enable-chunked-context", "guided_decoding_backend": "--guided-decoding-backend",
    "enable_lora": "--lora-dir", "lora_config": "--lora-dir", "quant_config": "--quant (--flow tensorrt)",
    "backend": "--flow", "kv_cache_dtype": "--kv-cache-dtype",
    "kv_cache_config.dtype": "--kv-cache-dtype", "kv_cache_config.enable_block_reuse": "--enable-kv-cache-reuse",
    "kv_cache_config.max_tokens": "--max-tokens-in-kv-cache",
    "kv_cache_config.max_attention_window": "--max-attention-window-size",
    "kv_cache_config.free_gpu_memory_fraction": "--kv-cache-free-gpu-mem-fraction",
    "kv_cache_config.host_cache_size": "--kv-cache-host-memory-bytes",
    "scheduler_config.capacity_scheduler_policy": "--batch-scheduler-policy",
}  # fmt: skip
"""Keys → the option of build/engine.py that sets them."""

_OF_THE_REPOSITORY = {
    **dict.fromkeys(
        (
            "tokenizer", "tokenizer_mode", "tokenizer_revision", "custom_tokenizer", "skip_tokenizer_init", "revision",
            "enable_tokenization_cache",
        ),
        "the engine takes and gives token ids, and has the repository's own tokenizer",
    ),
    **dict.fromkeys(
        ("sampler_type", "enable_trtllm_sampler", "enable_mixed_sampler", "disable_flashinfer_sampling"),
        "the sampler is chosen by what requests may ask for",
    ),
    **dict.fromkeys(
        (
            "reasoning_parser", "num_postprocess_workers", "postprocess_tokenizer_dir", "batched_logits_processor",
            "post_processor_hook", "num_serve_frontends",
        ),
        "text is made of token ids by openai_bls",
    ),
    **dict.fromkeys(
        ("load_format", "checkpoint_format", "checkpoint_loader", "mx_config", "gms_config", "model_kwargs"),
        "the weights and the config.json are those of the placed checkpoint",
    ),
    "telemetry_config": "TensorRT-LLM sends nothing unless TRTLLM_NO_USAGE_STATS=0 is in the server's environment",
    "enable_return_routed_experts": "no answer of openai_bls carries it",
    "env_overrides": "variables go into the server's own environment",
    "generation_config": "openai_bls reads the checkpoint's own",
    "enable_in_graph_sampling": "the sampler is chosen by what requests may ask for",
    **dict.fromkeys(
        (
            "multimodal_config", "disable_mm_encoder", "mm_encoder_only", "encode_only", "encoder_max_batch_size",
            "encoder_max_num_tokens", "encoder_cuda_graph_config", "enable_encoder_decoder_mixed_cuda_graph",
        ),
        "this engine serves the text of a model alone",
    ),
    **dict.fromkeys(
        (
            "peft_cache_config", "kv_connector_config", "cache_transceiver_config", "context_parallel_size",
            "cp_config", "dwdp_config",
        ),
        "disaggregated serving, connectors, context parallelism and caches of adapters on the host are not supported",
    ),
    **dict.fromkeys(
        (
            "sparse_attention_config", "kv_cache_compression_config", "enable_mla_skip_correction",
            "mla_skip_correction_threshold", "force_dynamic_quantization",
            "kv_cache_config.mamba_ssm_stochastic_rounding", "kv_cache_config.mamba_ssm_philox_rounds",
        ),
        "it changes the text that the model writes",
    ),
    **dict.fromkeys(
        (
            "return_perf_metrics", "perf_metrics_output_dir", "perf_metrics_max_requests", "otlp_traces_endpoint",
            "prometheus_metrics_config", "enable_energy_metrics",
        ),
        "metrics and traces are those of openai_bls",
    ),
    **dict.fromkeys(
        ("orchestrator_type", "ray_placement_config", "ray_worker_extension_cls", "ray_worker_nsight_options"),
        "the ranks are started by MPI",
    ),
    **dict.fromkeys(
        ("reorder_policy_config", "scheduler_config.waiting_queue_policy"),
        "requests are put in order by openai_bls, before the engine",
    ),
    "scheduler_config.dynamic_batch_config": "the PyTorch flow takes it and does nothing with it",
    "sleep_config": "the engine is never put to sleep",
    **dict.fromkeys(
        (
            "kv_cache_config.block_reuse_config", "kv_cache_config.disk_cache_path", "kv_cache_config.disk_cache_size",
            "kv_cache_config.disk_prefetch_num_reqs",
        ),
        "it is not known here what it does to other requests' prompts",
    ),
    **dict.fromkeys(
        ("kv_cache_config.kv_events_config", "kv_cache_config.kv_cache_event_hash_algo"),
        "the setting kv_events_endpoint publishes the events",
    ),
    "fail_fast_on_attention_window_too_large": "it is on, or a small KV cache would shorten what the model sees",
    "speculative_config.use_relaxed_acceptance_for_thinking": "it lets pass tokens that the model would not choose",
    "speculative_config.greedy_sampling": "--flow pytorch accepts what the model itself would choose",
    "speculative_config.posterior_threshold": "it lets pass tokens that the model would not choose",
    "speculative_config.load_format": "the weights are those of the draft model",
    "speculative_config.allow_advanced_sampling": "it has no effect any more: requests may sample",
    "speculative_config.use_rejection_sampling": "it is not known here whether outputs keep their distribution",
    "speculative_config.enable_penalty": "requests with penalties are refused while it drafts",
}  # fmt: skip
"""Keys that nobody may set → why."""

_TRITON_DEPRECATED_SINCE = Version(1, 3, 0, 28)
"""First candidate after pull request 19035."""

_OTHER_DRAFTERS = {
    "Medusa": "it is for --flow tensorrt of TensorRT-LLM's own scripts",
    "Lookahead": "it is for --flow tensorrt of TensorRT-LLM's own scripts",
    "AUTO": "it chooses by the batch size: name the drafter",
    "UserProvided": "it needs a Python object",
    "SaveState": "it writes hidden states instead of answering",
    **dict.fromkeys(("PARD", "SA", "DFlash", "DSpark"), "it is not known here whether the model's own tokens stay"),
}


class Recorded(msgspec.Struct, frozen=True):
    """What of one version may be given."""

    decoding_types: dict[str, str]
    """`decoding_type` → class."""
    classes: dict[str, dict[str, str]]
    """Class → field → type."""


@cache
def _tables() -> dict[Version, Recorded]:
    path = Path(__file__).with_name("llm_args.json")
    found = msgspec.json.decode(path.read_bytes(), type=dict[str, Recorded])
    return {Version.parse(name): table for name, table in found.items()}


def recorded(version: Version) -> Recorded:
    """The table of a version: its own, else the newest before it."""
    tables = _tables()
    return tables[max((known for known in tables if known <= version), default=min(tables))]


def read(values: Any, version: Version) -> dict[str, Any]:
    """Arguments in the terms of a version, with absolute paths.

    Raises:
        EngineLoadError: a key that is not known, that is somebody else's or in the wrong place, a value of the wrong
            type, or a file that is not there; one sentence that names it.
    """
    table = recorded(version)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise EngineLoadError(f"{OPTION} is no mapping of names to values")
    return _object(table, version, _ROOT, values, "")


def notes(values: Mapping[str, Any], version: Version) -> Iterator[str]:
    """Consequences of arguments that were read, a sentence each."""
    if (values.get("moe_config") or {}).get("backend") == "TRITON" and version >= _TRITON_DEPRECATED_SINCE:
        yield (
            f"moe_config.backend in {OPTION} is TRITON, which TensorRT-LLM has deprecated and means to remove: CUTLASS "
            "takes the same weights"
        )


def objects(package: TensorRtLlm, values: Mapping[str, Any], owner: str = _ROOT) -> dict[str, Any]:
    """Keyword arguments of `LLM`, or of a class below it: objects of the installed classes.

    Raises:
        EngineLoadError: the installed classes refuse one; one sentence.
    """
    table = recorded(package.version)
    fields = table.classes[owner]
    return {key: _made(package, table, fields.get(key, ""), key, value) for key, value in values.items()}


def _made(package: TensorRtLlm, table: Recorded, kind: str, key: str, value: Any) -> Any:
    name = kind.rstrip("?!")
    if value is None or not isinstance(value, dict):
        return value
    value = dict(value)
    if name == "speculative":
        name = table.decoding_types[value.pop("decoding_type")]
    fields = table.classes[name]
    made = {inner: _made(package, table, fields.get(inner, ""), inner, item) for inner, item in value.items()}
    found = package.name(f"tensorrt_llm.llmapi.llm_args.{name}")
    try:
        return package.make(found, **made)
    except EngineLoadError:
        raise
    except Exception as error:  # pydantic's, or an assertion of a validator
        raise EngineLoadError(f"{key} in {OPTION}: TensorRT-LLM's {name} refuses it: {first_line(error)}") from None


def _object(table: Recorded, version: Version, name: str, values: Mapping[str, Any], path: str) -> dict[str, Any]:
    fields = table.classes[name]
    found = {}
    for key, value in values.items():
        where = f"{path}{key}"
        kind = fields.get(key)
        if kind is None:
            raise EngineLoadError(f"{where} in {OPTION}: {_why_not(table, version, name, key, where)}")
        found[key] = _value(table, version, kind, value, where)
    missing = [key for key, kind in fields.items() if kind.endswith("!") and key not in values]
    if missing:
        raise EngineLoadError(f"{path}{missing[0]} is missing in {OPTION}")
    return found


def _why_not(table: Recorded, version: Version, name: str, key: str, where: str) -> str:
    if where in _OURS:
        return f"it is set by {_OURS[where]}: leave it out here"
    if where in _OF_THE_REPOSITORY:
        return f"it cannot be set: {_OF_THE_REPOSITORY[where]}"
    fields = table.classes[name]
    known = f"known for {name} of TensorRT-LLM {version.major}.{version.minor}: {', '.join(sorted(fields))}"
    homes = [home for home, inner in table.classes.items() if key in inner and home != name]
    if homes:
        owner = next((field for field, kind in table.classes[_ROOT].items() if kind.rstrip("?!") == homes[0]), "")
        place = owner or (SPECULATION if homes[0] in table.decoding_types.values() else "")
        return f"it belongs {f'into {place}' if place and homes[0] != _ROOT else 'at the top'}; {known}"
    near = nearest(key, fields)
    return f"{f'there is {near}; ' if near else ''}{known}"


def _value(table: Recorded, version: Version, kind: str, value: Any, where: str) -> Any:
    bare = kind.rstrip("?!")
    if value is None and "?" in kind:
        return None
    if bare == "speculative":
        return None if value is None else _speculative(table, version, value, where)
    if bare in table.classes:
        if not isinstance(value, dict):
            raise EngineLoadError(f"{where} in {OPTION} is {value!r}: a mapping is needed")
        return _object(table, version, bare, value, f"{where}.")
    if bare in ("file", "dir"):
        return _path(bare, value, where)
    try:
        return msgspec.convert(value, _type(bare))
    except msgspec.ValidationError:
        raise EngineLoadError(f"{where} in {OPTION} is {value!r}: {_needed(bare)} is needed") from None


def _path(kind: str, value: Any, where: str) -> str:
    path = Path(value).expanduser().absolute() if isinstance(value, str) else None
    if path is None or not (path.is_file() if kind == "file" else path.is_dir()):
        what = "file" if kind == "file" else "directory (a model of the hub is downloaded first)"
        raise EngineLoadError(f"{where} in {OPTION} is {value!r}, which is no {what}")
    return str(path)


def _speculative(table: Recorded, version: Version, value: Any, where: str) -> dict[str, Any]:
    config = dict(value) if isinstance(value, dict) else {}
    kind = config.pop("decoding_type", None)
    kind = "DraftTarget" if kind == "Draft_Target" else kind
    if kind == "Eagle" and kind not in table.decoding_types:
        # An alias from 1.3 on.
        kind = "Eagle3"
    name = table.decoding_types.get(kind) if isinstance(kind, str) else None
    if name is None:
        why = f" ({_OTHER_DRAFTERS[kind]})" if kind in _OTHER_DRAFTERS else ""
        raise EngineLoadError(
            f"{where}.decoding_type in {OPTION} is {kind!r}{why}: give one of {', '.join(table.decoding_types)}"
        )
    # 1.2 renamed it, and takes both.
    ours, theirs = draft_key(table.classes[name]), draft_key(config)
    if ours != theirs and theirs in config:
        config[ours] = config.pop(theirs)
    return {"decoding_type": kind, **_object(table, version, name, config, f"{where}.")}


def draft_key(fields: Mapping[str, Any]) -> str:
    """Name of the draft model among the fields of a class, or among values that were read."""
    return "speculative_model_dir" if "speculative_model_dir" in fields else "speculative_model"


@cache
def _type(kind: str) -> Any:
    if kind.startswith("["):
        return list[_type(kind[1:-1])]  # type: ignore[misc]  # made at run time
    name, relation, bound = kind.partition(">")
    plain: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str}
    if name not in plain:
        return Literal[tuple(kind.split("|"))]
    if not relation:
        return plain[name]
    limit = msgspec.Meta(ge=0) if bound.startswith("=") else msgspec.Meta(gt=0)
    return Annotated[plain[name], limit]


def _needed(kind: str) -> str:
    if kind.startswith("["):
        return f"a list, of which each item is {_needed(kind[1:-1])}"
    name, relation, bound = kind.partition(">")
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}
    if name not in words:
        return f"one of {', '.join(kind.split('|'))}"
    return f"{words[name]}{' of at least 0' if bound.startswith('=') else ' above 0' if relation else ''}"
