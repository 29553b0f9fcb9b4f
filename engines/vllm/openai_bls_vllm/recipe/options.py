"""Options of a vLLM engine, and what stands for the options that other engines have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from openai_bls.builder.options.yaml_file import read_yaml
from openai_bls.core.manifest import BuildError, Positive
from openai_bls.core.settings import EngineSettings
from openai_bls_vllm.arguments.engine_args import OPTION
from openai_bls_vllm.pooling import Task

_NAMES = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
_FIELDS = {
    "max_num_tokens": "max_num_batched_tokens",
    "max_tokens_in_kv_cache": "kv_cache_memory_bytes or num_gpu_blocks_override",
    "kv_cache_dtype": "kv_cache_dtype",
    "kv_cache_free_gpu_mem_fraction": "gpu_memory_utilization",
    "kv_cache_host_memory_bytes": "kv_offloading_size",
}
"""Options of other engines → the fields of AsyncEngineArgs that say the same."""

HONOURED_SETTINGS = ("enable_kv_cache_reuse", "enable_chunked_context")
"""Options that are settings of config.pbtxt with vLLM, too."""

_INSTEAD = {
    "max_input_len": "give --max-model-len, which bounds prompt and output together",
    "max_output_len": "give --max-model-len, which bounds prompt and output together",
    "max_beam_width": "there is no beam search with vLLM",
    "extra_llm_api_options": f"{OPTION} FILE has vLLM's own names",
    "guided_decoding_backend": "it always holds outputs to grammars, with llguidance",
    "batch_scheduler_policy": "it admits requests as max_utilization does",
    "workers": "vLLM builds nothing",
    "backend": "vLLM runs in a process of its own, behind our model.py",
}
_ELSEWHERE = {
    "flow", "calib_dataset", "calib_size", "plugin", "gemm_plugin", "gpt_attention_plugin", "use_paged_context_fmha",
    "use_fp8_context_fmha", "use_custom_all_reduce", "multiple_profiles", "gather_logits", "workspace",
    "keep_workspace", "cpp_parameter", "max_queue_delay", "max_queue_size", "max_attention_window_size",
}  # fmt: skip
"""Options of TensorRT-LLM that have no counterpart."""


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of vLLM alone."""

    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    quant: str = ""
    """Value of vLLM's `quantization`; empty is the checkpoint's own."""
    task: Task = "generate"
    extra_engine_args: dict[str, Any] = {}
    """Contents of the YAML file, not checked."""
    engine_python: str = ""
    """Path or command of the interpreter; empty leaves it to `survey.interpreter`."""
    settings: EngineSettings = EngineSettings()
    """Written into config.pbtxt."""


def read_options(values: dict[str, Any]) -> VllmOptions:
    """Options of a command line, which are taken out of `values`, its values by their names there.

    Raises:
        BuildError: a bad value, or an option that means nothing for vLLM; one sentence.
    """
    own: dict[str, Any] = {_NAMES[name]: values.pop(name) for name in _NAMES if name in values}
    own |= {name: values.pop(name) for name in ("quant", "task", "engine_python") if name in values}
    settings = {name: values.pop(name) for name in HONOURED_SETTINGS if name in values}
    own["settings"] = EngineSettings(**settings)
    if "extra_engine_args" in values:
        own["extra_engine_args"] = read_yaml(OPTION, values.pop("extra_engine_args"))
    for name, option in (("quant", "--quant"), ("engine_python", "--engine-python")):
        if own.get(name) == "":
            raise BuildError(f"{option} is empty: leave it out, or give it a value")
    for option, name in _NAMES.items():
        if own.get(name, 1) < 1:
            raise BuildError(f"--{option.replace('_', '-')} must be at least 1")
    return VllmOptions(**own)


def refuse_foreign(given: Collection[str]) -> None:
    """Refuse options that mean nothing for vLLM.

    Args:
        given: names of options, with underscores.

    Raises:
        BuildError: the first such option, and what to give instead.
    """
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if field := _FIELDS.get(name):
            raise BuildError(f"{option} is not for --engine vllm: put {field} into the file of {OPTION}")
        if instead := _INSTEAD.get(name):
            raise BuildError(f"{option} is not for --engine vllm: {instead}")
        if name in _ELSEWHERE:
            raise BuildError(f"{option} is for --engine tensorrt_llm: vLLM takes the checkpoint as it is")
