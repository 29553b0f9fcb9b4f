"""Block reuse and chunked prefill: models of the PyTorch flow that lack one of them.

Hybrids keep a state per sequence besides keys and values. Up to 1.2.1 TensorRT-LLM does not load one while block reuse
is on, which it is by default ("mamba hybrid cache requires block reuse to be disabled"); later releases turn it off by
themselves where nothing is set (`get_model_defaults`, pull request 11035). Other rows are those of the support matrices
in docs/source/models/supported-models.md, of main at 00b6d5a2. None of it was run here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.builder.checkpoint.config import first_architecture
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.images import WHOLE_PROMPTS
from openai_bls_tensorrt_llm.installed.interface import Flow, Version
from openai_bls_tensorrt_llm.recipe.model.states import has_states
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings

_DEFAULTS_SINCE = Version(1, 2, 2)
"""First release that turns block reuse off for hybrids."""

NO_REUSE = (
    "Qwen3NextForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration", "InklingForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3SparseForCausalLM", "Llama4ForConditionalGeneration",
    "LlavaLlamaModel",
)  # fmt: skip
"""Architectures whose row in the matrix says no KV cache reuse."""

NO_CHUNKED_PREFILL = ("HCXVisionForCausalLM", "Llama4ForConditionalGeneration", "LlavaLlamaModel")
"""Architectures whose row in the matrix says no chunked prefill."""


def with_features(
    settings: EngineSettings, config: dict[str, Any], flow: Flow, version: Version, *, images: bool = False
) -> tuple[EngineSettings, Findings]:
    """Serving settings with what the model's kind lacks turned off, where nothing was given, and what to know of it.

    Args:
        settings: the settings as given.
        config: contents of the checkpoint's config.json.
        flow: flow of the engine.
        version: version of TensorRT-LLM.
        images: prompts may hold images.
    """
    if flow != "pytorch":
        return settings, Findings()
    name = first_architecture(config)
    problems: list[str] = []
    notes: list[str] = []
    why = ""
    if has_states(config) and version < _DEFAULTS_SINCE:
        why = f"TensorRT-LLM {version} loads no model that keeps a state per sequence (here {name}) with block reuse on"
    elif name in NO_REUSE:
        why = f"TensorRT-LLM's support matrix has no KV cache reuse for {name}"
    elif images and name in WHOLE_PROMPTS:
        why = f"TensorRT-LLM's support matrix has no KV cache reuse for {name} with images"
    if why and settings.enable_kv_cache_reuse:
        problems.append(f"--enable-kv-cache-reuse: {why}; leave it out")
    elif why and settings.enable_kv_cache_reuse is None:
        settings = msgspec.structs.replace(settings, enable_kv_cache_reuse=False)
        notes.append(
            f"prompts that begin alike do not share their KV cache: {why}, so the build turns enable_kv_cache_reuse "
            "off in config.pbtxt"
        )
    if name in NO_CHUNKED_PREFILL or (images and name in WHOLE_PROMPTS):
        why = f"TensorRT-LLM's support matrix has no chunked prefill for {name}"
        if settings.enable_chunked_context:
            problems.append(f"--enable-chunked-context: {why}; leave it out")
        elif settings.enable_chunked_context is None:
            settings = msgspec.structs.replace(settings, enable_chunked_context=False)
            notes.append(f"{why}: the build turns enable_chunked_context off in config.pbtxt")
    return settings, Findings(problems=tuple(problems), notes=tuple(notes))
