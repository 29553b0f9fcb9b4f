"""Build of an engine of transformers for `openai-bls build`, and its options."""

from __future__ import annotations

import shlex
from typing import Any, get_args

import msgspec

from openai_bls.builder.engine_build import EngineBuild, Offer, Wanted
from openai_bls.core.manifest import BuildError
from openai_bls.engines.plugin import Lazy
from openai_bls_transformers.record import Quantization

_ACCEPTS = frozenset(
    (
        "quant",
        "tp_size",
        "max_images",
        "self_test",
        "lora_dir",
        "max_loras",
        "max_lora_rank",
        "max_tokens_in_kv_cache",
    )
)


class EmbeddedOptions(msgspec.Struct, frozen=True):
    """Options of this engine."""

    quant: Quantization = ""


def read_options(values: dict[str, Any]) -> EmbeddedOptions:
    """Options of a command line.

    Raises:
        BuildError: another quantization than this engine has, or several GPUs.
    """
    quant, gpus = values.get("quant", "").lower(), values.get("tp_size", 1)
    if quant not in get_args(Quantization):
        raise BuildError(f"--quant {values['quant']} is for other engines: the engine transformers has fp8")
    if gpus > 1:
        raise _one_gpu(gpus, values.get("model", ""))
    return EmbeddedOptions(quant)


def _one_gpu(gpus: int, model: str) -> BuildError:
    line = shlex.join(["openai-bls", "build", "--engine", "vllm", "--tp-size", str(gpus), "--model", model])
    return BuildError(
        f"--tp-size {gpus}: the embedded engine runs on one GPU: run `{line}`, or the same with --engine "
        "tensorrt_llm where TensorRT-LLM is installed (docs/guides/several-gpus.md)"
    )


def offer(wanted: Wanted) -> Offer:
    """Takes any checkpoint that no other engine takes."""
    return Offer(0 if wanted.gguf else 10, "")


BUILD = EngineBuild(
    recipe=Lazy("openai_bls_transformers.recipe.building:EmbeddedRecipe"),
    accepts=_ACCEPTS,
    read_options=Lazy("openai_bls_transformers.recipe.engine_build:read_options"),
    offer=Lazy("openai_bls_transformers.recipe.engine_build:offer"),
    packages=("transformers", "torch"),
)
