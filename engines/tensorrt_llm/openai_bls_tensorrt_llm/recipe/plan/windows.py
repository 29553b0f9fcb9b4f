"""Attention windows: layers that look back at a part of the sequence, which a TensorRT engine is told when it runs.

Sources: the sections on Gemma 2 and Gemma 3 in examples/models/core/gemma/README.md, and on Mistral v0.1 in
examples/models/core/llama/README.md, of TensorRT-LLM 0.20 to 1.2; modeling_gemma3.py (windows of its own) and
modeling_mistral.py (none) in tensorrt_llm/_torch/models; pull request 5564 and TestGemma3_1BInstruct in
tests/integration/defs/accuracy/test_llm_api_pytorch.py (no block reuse). None of it was run here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.core.checkpoint import text_config
from openai_bls.core.settings import EngineSettings
from openai_bls_tensorrt_llm.installed.interface import Flow
from openai_bls_tensorrt_llm.recipe.model.families import Family, Windows
from openai_bls_tensorrt_llm.recipe.plan.findings import Findings

_ANY_LENGTH = 1 << 62
_GEMMA3_PATTERN = 6
"""Every sixth layer looks back at everything: transformers' default."""


def windows_of(config: dict[str, Any], max_seq_len: int) -> tuple[int, ...]:
    """Tokens that each layer looks back, cyclically; empty if all look back at all of `max_seq_len`."""
    text = text_config(config)
    window = text.get("sliding_window")
    if not isinstance(window, int) or not 0 < window < max_seq_len:
        return ()
    return tuple(window if sliding else max_seq_len for sliding in _cycle(text))


def _cycle(text: dict[str, Any]) -> list[bool]:
    """Which layers have the window, up to where they repeat."""
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and kinds:
        sliding = [kind == "sliding_attention" for kind in kinds]
        size = next(n for n in range(1, len(sliding) + 1) if all(s == sliding[i % n] for i, s in enumerate(sliding)))
        return sliding[:size]
    if str(text.get("model_type")).startswith("gemma3"):
        pattern = text.get("sliding_window_pattern", text.get("_sliding_window_pattern"))
        size = pattern if isinstance(pattern, int) and pattern > 0 else _GEMMA3_PATTERN
        return [True] * (size - 1) + [False]
    return [True]


def honoured(config: dict[str, Any], family: Family | None, flow: Flow) -> Windows | None:
    """How a flow honours the model's windows; None if it has none, or if that is not known."""
    return family.windows.get(flow) if family is not None and windows_of(config, _ANY_LENGTH) else None


def end(config: dict[str, Any], family: Family | None, flow: Flow) -> int | None:
    """Tokens at which sequences end because the flow knows no windows in this family; None if they do not."""
    return min(windows_of(config, _ANY_LENGTH)) if honoured(config, family, flow) == "none" else None


def with_windows(
    settings: EngineSettings, config: dict[str, Any], family: Family | None, flow: Flow, max_seq_len: int
) -> tuple[EngineSettings, Findings]:
    """Serving settings with the model's windows, where none were given, and what to know of them."""
    how, found = honoured(config, family, flow), windows_of(config, max_seq_len)
    if how not in ("setting", "own") or not found:
        return settings, Findings()
    notes: list[str] = []
    if how == "setting" and not settings.max_attention_window_size:
        written = ",".join(map(str, found))
        settings = msgspec.structs.replace(settings, max_attention_window_size=written)
        notes.append(
            f"layers that look back {min(found):,} tokens: the build writes max_attention_window_size {written} into "
            "config.pbtxt, without which TensorRT-LLM has all layers look back at everything"
        )
    if settings.enable_kv_cache_reuse and how == "own":
        return settings, Findings(
            problems=(
                "--enable-kv-cache-reuse changes this model's text in the PyTorch flow, and TensorRT-LLM's own tests "
                "turn it off (pull request 5564): leave it out",
            )
        )
    if settings.enable_kv_cache_reuse is None:
        settings = msgspec.structs.replace(settings, enable_kv_cache_reuse=False)
        notes.append(
            "prompts that begin alike do not share their KV cache: the build turns enable_kv_cache_reuse off in "
            "config.pbtxt, as TensorRT-LLM's own tests do for layers with such windows"
        )
    return settings, Findings(notes=tuple(notes))
