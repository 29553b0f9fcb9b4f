"""Models that vLLM was measured to run faster on a GPU than the embedded engine does (benchmarks/RESULTS.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openai_bls.core.checkpoint import expert_count
from openai_bls_transformers.record import SelfTestRecord

_WITH_GRAPHS = ("paged", "flash_attention")
"""Beginnings of the names of attentions whose steps are CUDA graphs."""


def vllm_advice(text_config: Mapping[str, Any], record: SelfTestRecord) -> str | None:
    """A line of the build that names vLLM where the embedded engine made less than 0.9 times its tokens on a GPU.

    Args:
        text_config: fields of config.json that describe the language model.
        record: outcome of the build's self-test.
    """
    if record.device == "cpu" or record.runner != "continuous_batching":
        return None
    if not record.attention.startswith(_WITH_GRAPHS):
        measured = f"0.2 times its tokens/s at most: attention {record.attention} has no CUDA graphs"
    elif record.plain_experts and expert_count(text_config) > 1:
        measured = "0.75 to 0.87 times its tokens/s with experts that run by transformers' own code"
    else:
        return None
    return f"use vLLM for this (--engine vllm): on a GPU the embedded engine made {measured}"
