"""Model families of TensorRT-LLM: the table behind engines/tensorrt_llm/docs/models.md (families.json), and refusals.

The architectures of the installed TensorRT-LLM decide what it takes. The table has the notes, the commands and the
releases, and decides alone where TensorRT-LLM is not installed. Read from the public source of TensorRT-LLM:
`MODEL_MAP` in tensorrt_llm/models/__init__.py for the flow `tensorrt`, the `register_auto_model` lines of
tensorrt_llm/_torch/models and docs/source/models/supported-models.md for the flow `pytorch`, the release notes for the
versions, and the support matrices in examples/models/*/README.md for the quantizations. None of it was run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from openai_bls.builder.checkpoint.config import first_architecture
from openai_bls_tensorrt_llm.installed.interface import Flow, Quant

Version = tuple[int, int]
"""Major and minor of a TensorRT-LLM release."""

Windows = Literal["setting", "own", "none"]
"""How a flow honours config.json's `sliding_window`: by `max_attention_window_size` at run time, by the model's own
code, or not at all, so that sequences end there."""

TENSORRT_FLOW_END: Version = (1, 3)
"""First release that builds no engines (removed in 1.3.0rc21)."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Models that TensorRT-LLM treats alike."""

    name: str
    architectures: tuple[str, ...]
    """Names as in config.json."""
    models: dict[str, str]
    """Name of a model → id on the Hugging Face hub of one to try."""
    tensorrt_class: str | None = None
    """The class in tensorrt_llm.models that converts it; None if there is none."""
    tensorrt_since: Version | None = None
    """First release whose `LLM` class builds an engine of it."""
    pytorch_since: Version | None = None
    """First release whose PyTorch flow loads it; None if none does."""
    trust_remote_code: bool = False
    """True if it runs Python code that comes with the checkpoint. transformers has all others itself, which the
    embedded engine needs."""
    quants: tuple[Quant, ...] = ()
    """Quantizations that TensorRT-LLM documents for it in the flow `tensorrt`."""
    modelopt: tuple[Quant, ...] | None = None
    """Quantizations that its class hands on to ModelOpt; None is all, and an fp8 KV cache alone."""
    int8_cache_texts: int | None = None
    """Texts on which its conversion calibrates an int8 KV cache, 0 for as many as asked for; None if it fails at it."""
    windows: dict[Flow, Windows] = {}
    """Treatment of a sliding window, by the flows in which models of the family with one are known to run."""
    notes: tuple[str, ...] = ()


FAMILIES = msgspec.json.decode(Path(__file__).with_name("families.json").read_bytes(), type=tuple[Family, ...])


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
    """Refusal of building or loading this model so, in one sentence that says what to do; None if it can be.

    Args:
        config: contents of the checkpoint's config.json.
        flow: flow of TensorRT-LLM.
        version: version of TensorRT-LLM.
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
    """Notes on a model that is not refused, beside its sizes."""
    family, name = family_of(config), first_architecture(config)
    if family is not None:
        return quant_note(family, quant) if quant and flow == "tensorrt" else None
    if installed and installed.get(flow):
        return (
            f"{name} is not in the table of models: the installed TensorRT-LLM has it, and no more is known of it here"
        )
    return f"{name} is not in the table of models, and TensorRT-LLM was not asked whether it has it: the build asks it"


def quant_note(family: Family, quant: Quant) -> str | None:
    """Note on this quantization in the flow `tensorrt`; None where TensorRT-LLM documents it for the family."""
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
