"""Plan of a vLLM engine: the arguments that vLLM is asked about, and whether the weights fit its devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from openai_bls.builder.options.build import BuildOptions
from openai_bls_vllm.pooling import engine_args
from openai_bls_vllm.recipe.options import VllmOptions
from openai_bls_vllm.survey.interpreter import Survey

_GIB = 1 << 30
_MEMORY_SHARE = 0.92
"""`gpu_memory_utilization` of vLLM where nothing else is said, the highest of the versions that are known."""


def survey_arguments(options: BuildOptions, source: Path) -> dict[str, Any]:
    """Fields of AsyncEngineArgs that vLLM's configuration of the model depends on.

    Args:
        options: options of the build; `engine_args.check` refuses further arguments of the names that are set here.
        source: folder of the checkpoint.
    """
    own = options.own_as(VllmOptions)
    values: dict[str, Any] = {
        "model": str(source.absolute()),
        "skip_tokenizer_init": True,
        "trust_remote_code": options.trust_remote_code,
        "tensor_parallel_size": own.tensor_parallel_size,
        "pipeline_parallel_size": own.pipeline_parallel_size,
        "max_num_seqs": options.batch_size,
    }
    values |= engine_args(own.task)
    if options.dtype != "auto":
        values["dtype"] = options.dtype
    if own.quant:
        values["quantization"] = own.quant
    if options.max_model_len is not None:
        values["max_model_len"] = options.max_model_len
    return {**_normalized(own.extra_engine_args), **values}


def nodes_of(options: BuildOptions) -> int:
    """Machines that the engine runs on: vLLM's `nnodes`."""
    return int(_normalized(options.own_as(VllmOptions).extra_engine_args).get("nnodes", 1))


def problems(options: BuildOptions, survey: Survey, weight_bytes: int) -> Iterator[str]:
    """Reasons why the engine would not start on this machine, a sentence each; none on a CPU.

    Args:
        options: options of the build.
        survey: survey of the interpreter.
        weight_bytes: size of the checkpoint's weights.
    """
    if survey.device_type != "cuda":
        return
    own = options.own_as(VllmOptions)
    ranks = own.tensor_parallel_size * own.pipeline_parallel_size
    here = -(-ranks // nodes_of(options))
    if here > len(survey.devices):
        yield (
            f"--tp-size {own.tensor_parallel_size} and --pp-size {own.pipeline_parallel_size} need {here} GPUs on this "
            f"machine, and vLLM sees {len(survey.devices)}: lower them, or make more visible (CUDA_VISIBLE_DEVICES)"
        )
        return
    # A quantization that vLLM makes at the load leaves an unknown part of the weights.
    each = 0 if own.quant else weight_bytes / ranks
    share = _share(_normalized(own.extra_engine_args))
    for device in survey.devices[:here]:
        if each > device.memory_bytes * share:
            yield (
                f"the weights do not fit: {each / _GIB:.1f} GiB for each GPU, and {device.name} gives vLLM "
                f"{device.memory_bytes * share / _GIB:.1f} GiB: raise --tp-size or --pp-size, or quantize with --quant"
            )
            return


def _normalized(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name).lstrip("-").replace("-", "_"): value for name, value in extra.items()}


def _share(extra: Mapping[str, Any]) -> float:
    given = extra.get("gpu_memory_utilization", _MEMORY_SHARE)
    return float(given) if isinstance(given, int | float) else _MEMORY_SHARE
