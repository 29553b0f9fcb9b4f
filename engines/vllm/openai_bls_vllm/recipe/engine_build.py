"""Build of a vLLM engine for `openai-bls build`."""

from __future__ import annotations

import importlib.util

from openai_bls.builder.engine_build import EngineBuild, Offer, Wanted
from openai_bls.engines.plugin import Lazy

_ACCEPTS = frozenset(
    (
        "tp_size",
        "pp_size",
        "task",
        "quant",
        "engine_python",
        "extra_engine_args",
        "enable_kv_cache_reuse",
        "enable_chunked_context",
        "lora_dir",
        "max_loras",
        "max_lora_rank",
        "max_images",
        "self_test",
    )
)


def offer(wanted: Wanted) -> Offer:
    """Takes checkpoints where this Python has vLLM and there is a GPU."""
    if wanted.gguf or importlib.util.find_spec("vllm") is None:
        return Offer(0, "")
    if not wanted.gpus:
        return Offer(0, "vLLM is installed, but there is no GPU")
    return Offer(30, f"it is installed, and there is a GPU ({wanted.gpus[0]})")


BUILD = EngineBuild(
    recipe=Lazy("openai_bls_vllm.recipe.building:VllmRecipe"),
    accepts=_ACCEPTS,
    add_arguments=Lazy("openai_bls_vllm.recipe.arguments:add_arguments"),
    refuse=Lazy("openai_bls_vllm.recipe.options:refuse_foreign"),
    read_options=Lazy("openai_bls_vllm.recipe.options:read_options"),
    offer=Lazy("openai_bls_vllm.recipe.engine_build:offer"),
)
