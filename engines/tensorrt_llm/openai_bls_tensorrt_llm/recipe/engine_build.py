"""Build of a TensorRT-LLM engine for `openai-bls build`, and the plan of --dry-run."""

from __future__ import annotations

import importlib.util

from openai_bls.builder.engine_build import EngineBuild, Offer, Wanted
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.source.hub import fetch_config, local_path
from openai_bls.core.machine.nvidia_smi import visible_gpus
from openai_bls.core.manifest import EngineSetupError
from openai_bls.engines.plugin import Lazy
from openai_bls_tensorrt_llm.recipe.options import TENSORRT_LLM_ONLY, TensorRtLlmOptions

_SHARED = frozenset(
    ("quant", "tp_size", "pp_size", "lora_dir", "max_loras", "max_lora_rank", "max_images", "max_tokens_in_kv_cache")
)


def offer(wanted: Wanted) -> Offer:
    """Takes checkpoints where this Python has TensorRT-LLM and there is a GPU."""
    if wanted.gguf:
        return Offer(0, "")
    if importlib.util.find_spec("tensorrt_llm") is None:
        return Offer(0, "TensorRT-LLM is not installed")
    if not wanted.gpus:
        return Offer(0, "TensorRT-LLM is installed, but there is no GPU")
    return Offer(40, f"it is installed, and there is a GPU ({wanted.gpus[0]})")


def plan(options: BuildOptions, gpu_name: str | None, gpu_memory: str | None) -> tuple[str, int]:
    """Plan of a build in words, and the exit status: 1 if it cannot work."""
    from openai_bls_tensorrt_llm.recipe.building import request_of
    from openai_bls_tensorrt_llm.recipe.plan import planning
    from openai_bls_tensorrt_llm.recipe.survey import ask_installed

    found = ask_installed(options.own_as(TensorRtLlmOptions).extra_llm_api_options)
    installed = visible_gpus()
    gpu = planning.gpu_for(gpu_name, gpu_memory, installed)
    config, source = fetch_config(options.model, options.revision), local_path(options.model)
    request = request_of(options, config, source, found.architectures, found.arguments_refusal)
    head = f"TensorRT-LLM {found.about}\n"
    if gpu_name is gpu_memory is None and not installed:
        head += f"there is no GPU here: estimated for {gpu.name} (--gpu NAME for another)\n"
    try:
        made = planning.plan(request, found.version, gpu)
    except EngineSetupError as error:
        # There is nothing to estimate, and the reason stands where the others do.
        return head + planning.sentences([str(error)], ()).lstrip("\n"), 1
    return head + planning.described(request, made), 1 if made.problems else 0


BUILD = EngineBuild(
    recipe=Lazy("openai_bls_tensorrt_llm.recipe.building:TensorRtLlmRecipe"),
    accepts=_SHARED | TENSORRT_LLM_ONLY,
    add_arguments=Lazy("openai_bls_tensorrt_llm.recipe.arguments:add_arguments"),
    read_options=Lazy("openai_bls_tensorrt_llm.recipe.options:read_options"),
    offer=Lazy("openai_bls_tensorrt_llm.recipe.engine_build:offer"),
    plan=Lazy("openai_bls_tensorrt_llm.recipe.engine_build:plan"),
    takes_long=True,
    packages=("transformers", "torch", "tensorrt_llm", "tensorrt", "nvidia-modelopt"),
)
