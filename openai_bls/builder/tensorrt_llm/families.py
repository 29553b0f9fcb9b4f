"""Model families of TensorRT-LLM: the table behind docs/models.md, and what the installed one says beyond it.

The architectures of the installed TensorRT-LLM decide what it takes. The table has the notes, the commands and the
releases, and decides alone where TensorRT-LLM is not installed. Read from the public source of TensorRT-LLM:
`MODEL_MAP` in tensorrt_llm/models/__init__.py for the flow `tensorrt`, the `register_auto_model` lines of
tensorrt_llm/_torch/models and docs/source/models/supported-models.md for the flow `pytorch`, the release notes for the
versions, and the support matrices in examples/models/*/README.md for the quantizations. None of it was run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from openai_bls.builder.tensorrt_llm.hf_config import first_architecture
from openai_bls.engines.tensorrt_llm.interface import Flow, Quant

Version = tuple[int, int]
"""Major and minor of a TensorRT-LLM release."""

TENSORRT_FLOW_END: Version = (1, 3)
"""First release that builds no engines (removed in 1.3.0rc21)."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Models that TensorRT-LLM treats alike."""

    name: str
    architectures: tuple[str, ...]
    """As in config.json."""
    models: dict[str, str]
    """Name of a model → id on the Hugging Face hub of one to try."""
    tensorrt_class: str | None = None
    """The class in tensorrt_llm.models that converts it; None if there is none."""
    tensorrt_since: Version | None = None
    """First release whose `LLM` class builds an engine of it."""
    pytorch_since: Version | None = None
    """First release whose PyTorch flow loads it; None if none does."""
    trust_remote_code: bool = False
    """Whether it runs Python code that comes with the checkpoint. transformers has all others itself, which the
    embedded engine needs."""
    quants: tuple[Quant, ...] = ()
    """That TensorRT-LLM documents for it in the flow `tensorrt`."""
    notes: tuple[str, ...] = ()


_INT8_INT4: tuple[Quant, ...] = ("int8_weight_only", "int4_weight_only")
_OWN_TOKENIZER = "its tokenizer is Python code: the build makes a tokenizer.json from the data beside that code"

FAMILIES: tuple[Family, ...] = (
    Family(
        name="Llama",
        architectures=("LlamaForCausalLM",),
        models={
            "Llama 2": "meta-llama/Llama-2-7b-chat-hf",
            "Llama 3": "meta-llama/Llama-3.1-8B-Instruct",
            "CodeLlama": "codellama/CodeLlama-13b-Instruct-hf",
            "Yi": "01-ai/Yi-1.5-6B-Chat",
        },
        tensorrt_class="LLaMAForCausalLM", tensorrt_since=(0, 12), pytorch_since=(0, 17),
        quants=("fp8", "fp8_rowwise", *_INT8_INT4, "int8_sq", "awq", "w4a8_awq", "nvfp4"),
    ),
    Family(
        name="Mistral",
        architectures=("MistralForCausalLM",),
        models={"Mistral": "mistralai/Mistral-7B-Instruct-v0.3"},
        tensorrt_class="LLaMAForCausalLM", tensorrt_since=(0, 12), pytorch_since=(0, 20),
        quants=("fp8", *_INT8_INT4, "int8_sq", "awq"),
        notes=("7B v0.1 was trained to look back 4,096 tokens at most, later versions look back at everything",),
    ),
    Family(
        name="Mixtral",
        architectures=("MixtralForCausalLM",),
        models={"Mixtral": "mistralai/Mixtral-8x7B-Instruct-v0.1"},
        tensorrt_class="LLaMAForCausalLM", tensorrt_since=(0, 12), pytorch_since=(0, 17),
        quants=("fp8", *_INT8_INT4, "awq", "nvfp4"),
    ),
    Family(
        name="Qwen2",
        architectures=("Qwen2ForCausalLM",),
        models={
            "Qwen1.5": "Qwen/Qwen1.5-14B-Chat",
            "Qwen2": "Qwen/Qwen2-7B-Instruct",
            "Qwen2.5": "Qwen/Qwen2.5-7B-Instruct",
        },
        tensorrt_class="QWenForCausalLM", tensorrt_since=(0, 12), pytorch_since=(0, 17),
        quants=("fp8", *_INT8_INT4, "int8_sq", "awq"),
        notes=("AWQ does not go with every --tp-size for the sizes 0.5B, 1.8B, 4B, 14B and 72B",),
    ),
    Family(
        name="Qwen2-MoE",
        architectures=("Qwen2MoeForCausalLM",),
        models={"Qwen1.5-MoE, Qwen2-57B-A14B": "Qwen/Qwen1.5-MoE-A2.7B-Chat"},
        tensorrt_class="QWenForCausalLM", tensorrt_since=(0, 12), pytorch_since=(0, 19),
        quants=_INT8_INT4,
    ),
    Family(
        name="Qwen3",
        architectures=("Qwen3ForCausalLM",),
        models={"Qwen3": "Qwen/Qwen3-8B"},
        tensorrt_class="QWenForCausalLM", tensorrt_since=(1, 0), pytorch_since=(0, 20),
        quants=("fp8",),
    ),
    Family(
        name="Qwen3-MoE",
        architectures=("Qwen3MoeForCausalLM",),
        models={"Qwen3 with experts": "Qwen/Qwen3-30B-A3B"},
        tensorrt_class="QWenForCausalLM", tensorrt_since=(1, 0), pytorch_since=(0, 20),
        quants=("fp8",),
    ),
    Family(
        name="Qwen1",
        architectures=("QWenLMHeadModel",),
        models={"Qwen (the first)": "Qwen/Qwen-7B-Chat"},
        tensorrt_class="QWenForCausalLM", tensorrt_since=(0, 12), trust_remote_code=True,
        quants=("fp8", *_INT8_INT4, "int8_sq", "awq"),
        notes=(
            _OWN_TOKENIZER,
            "TensorRT-LLM lacks its dynamic NTK scaling, so sequences end at config.json's seq_length",
        ),
    ),
    Family(
        name="Baichuan",
        architectures=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
        models={"Baichuan2": "baichuan-inc/Baichuan2-13B-Chat"},
        tensorrt_class="BaichuanForCausalLM", tensorrt_since=(0, 12), trust_remote_code=True,
        quants=("fp8", *_INT8_INT4, "int8_sq", "awq"),
        notes=(
            _OWN_TOKENIZER,
            "that code fails with transformers 4.34 and later ('sp_model'), so calibrating needs it corrected",
        ),
    ),
    Family(
        name="ChatGLM",
        architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration", "ChatGLMForCausalLM"),
        models={
            "ChatGLM2, ChatGLM3": "THUDM/chatglm3-6b",
            "GLM-4 (with its own code)": "THUDM/glm-4-9b-chat",
        },
        tensorrt_class="ChatGLMForCausalLM", tensorrt_since=(0, 12), trust_remote_code=True,
        quants=("fp8", *_INT8_INT4, "int8_sq", "awq"),
        notes=(
            _OWN_TOKENIZER,
            "TensorRT-LLM guesses the version from the checkpoint's path, so the build gives it one that says it",
            "GLM-4 is listed with int8_weight_only and int4_weight_only alone, and none of them with --pp-size",
        ),
    ),
    Family(
        name="GLM",
        architectures=("GlmForCausalLM", "Glm4ForCausalLM"),
        models={"GLM-4 (as transformers has it)": "THUDM/glm-4-9b-chat-hf"},
        notes=(
            "TensorRT-LLM has no such class; THUDM/glm-4-9b-chat has the weights of glm-4-9b-chat-hf as it takes them",
        ),
    ),
    Family(
        name="Phi-3",
        architectures=("Phi3ForCausalLM",),
        models={"Phi-3, Phi-3.5, Phi-4": "microsoft/Phi-3-mini-4k-instruct"},
        tensorrt_class="Phi3ForCausalLM", tensorrt_since=(0, 12), pytorch_since=(1, 1),
        quants=("fp8", "int8_sq"),
    ),
    Family(
        name="Gemma",
        architectures=("GemmaForCausalLM", "Gemma2ForCausalLM"),
        models={"Gemma, Gemma 2": "google/gemma-2-9b-it"},
        tensorrt_class="GemmaForCausalLM", tensorrt_since=(0, 13),
        quants=("fp8", "int8_weight_only", "int8_sq", "awq"),
        notes=("int8_sq takes --dtype float16 only",),
    ),
    Family(
        name="Gemma 3",
        architectures=("Gemma3ForCausalLM",),
        models={"Gemma 3 (text)": "google/gemma-3-1b-it"},
        tensorrt_class="GemmaForCausalLM", tensorrt_since=(0, 19), pytorch_since=(0, 20),
    ),
)  # fmt: skip


def family_of(config: dict[str, Any]) -> Family | None:
    """Family of a model, by the first architecture of its config.json; None if the table has none."""
    name = first_architecture(config)
    return next((family for family in FAMILIES if name in family.architectures), None)


def refusal(
    config: dict[str, Any],
    flow: Flow,
    version: Version,
    *,
    trust_remote_code: bool,
    installed: Mapping[Flow, frozenset[str]] | None = None,
) -> str | None:
    """Why this model cannot be built or loaded so, in one sentence that says what to do; None if it can.

    Args:
        config: contents of the checkpoint's config.json.
        flow: of TensorRT-LLM.
        version: of TensorRT-LLM.
        trust_remote_code: whether the operator allows the checkpoint's own Python code.
        installed: architectures that the installed TensorRT-LLM has in each flow; where it was not asked, or does not
            tell, the table decides.
    """
    family, name = family_of(config), first_architecture(config)
    if family is not None and family.name == "ChatGLM" and "inner_hidden_size" in config:
        return "ChatGLM-6B, the first of its name, is not supported: use ChatGLM2, ChatGLM3 or GLM-4"
    has = installed.get(flow) if installed else None
    if has and name not in has:
        told = _refusal_of_flow(family, flow, version) if family else None
        return told or _not_in_flow(name, flow, version, installed or {})
    if not has:
        if family is None:
            return None if flow == "pytorch" and name else _unknown(name, flow, asked=installed is not None)
        if refused := _refusal_of_flow(family, flow, version):
            return refused
    if family is not None and family.trust_remote_code and not trust_remote_code:
        return (
            f"{family.name} models run Python code that comes with the checkpoint: "
            "pass --trust-remote-code if you trust it"
        )
    return None


def note(
    config: dict[str, Any], flow: Flow, quant: Quant | None, installed: Mapping[Flow, frozenset[str]] | None
) -> str | None:
    """What to know of a model that is not refused, beside its sizes."""
    family, name = family_of(config), first_architecture(config)
    if family is not None:
        return quant_note(family, quant) if quant and flow == "tensorrt" else None
    if installed and installed.get(flow):
        return f"{name} is not in docs/models.md: the installed TensorRT-LLM has it, and no more is known of it here"
    return f"{name} is not in docs/models.md, and TensorRT-LLM was not asked whether it has it: the build asks it"


def quant_note(family: Family, quant: Quant) -> str | None:
    """What to know of this quantization in the flow `tensorrt`; None where TensorRT-LLM documents it for the family."""
    if quant in family.quants:
        return None
    listed = ", ".join(family.quants) or "none"
    return f"TensorRT-LLM does not list {quant} for {family.name} (it lists {listed}): the build may refuse it"


def command(family: Family, example: str) -> str:
    """Command that builds a model: with TensorRT-LLM where that takes it, as an engine if it can, else embedded."""
    engine = "--engine tensorrt_llm"
    if family.tensorrt_class is None:
        engine = f"{engine} --flow pytorch" if family.pytorch_since else "--engine transformers"
    trust = " --trust-remote-code" if family.trust_remote_code else ""
    return f"python build/engine.py --model {example} {engine}{trust}"


def written(version: Version) -> str:
    """As people write it: `1.0`."""
    return f"{version[0]}.{version[1]}"


def _not_in_flow(name: str, flow: Flow, version: Version, installed: Mapping[Flow, frozenset[str]]) -> str:
    others = [f"--flow {other}" for other, names in installed.items() if name in names]
    return (
        f"the installed TensorRT-LLM {written(version)} has no {name or 'model without a name in config.json'} in "
        f"--flow {flow}: use {others[0] if others else '--engine transformers, which runs what transformers has'}"
    )


def _unknown(name: str, flow: Flow, *, asked: bool) -> str:
    known = ", ".join(name for family in FAMILIES for name in family.models)
    why = "does not tell its models" if asked else "is not installed here to be asked"
    return (
        f"{name or 'an architecture that config.json does not name'} is no model family known here for TensorRT-LLM, "
        f"which {why}: known are {known}; {'--flow pytorch has more, and ' if flow == 'tensorrt' else ''}"
        "--engine transformers runs what transformers has"
    )


def _refusal_of_flow(family: Family, flow: Flow, version: Version) -> str | None:
    since = {"tensorrt": family.tensorrt_since, "pytorch": family.pytorch_since}
    if since[flow] is None:
        return f"TensorRT-LLM has no {family.name} models in --flow {flow}: use {_instead(family, flow, version)}"
    if flow == "tensorrt" and version >= TENSORRT_FLOW_END:
        other = (
            f", or {_instead(family, flow, version)}" if family.pytorch_since or not family.trust_remote_code else ""
        )
        return (
            f"TensorRT-LLM {written(version)} builds no engines any more: "
            f"use a release before {written(TENSORRT_FLOW_END)}{other}"
        )
    first = since[flow]
    if first is not None and version < first:
        return (
            f"{family.name} models need TensorRT-LLM {written(first)} or later in --flow {flow}, and this is "
            f"{written(version)}: use a newer one, or {_instead(family, flow, version)}"
        )
    return None


def _instead(family: Family, flow: Flow, version: Version) -> str:
    """Another way to run it; the model of another family where there is none."""
    if flow == "tensorrt" and family.pytorch_since is not None and version >= family.pytorch_since:
        return "--flow pytorch"
    if flow == "pytorch" and family.tensorrt_since is not None and family.tensorrt_since <= version < TENSORRT_FLOW_END:
        return "--flow tensorrt"
    if not family.trust_remote_code:
        return "--engine transformers"
    return f"TensorRT-LLM before {written(TENSORRT_FLOW_END)} with --flow tensorrt"
