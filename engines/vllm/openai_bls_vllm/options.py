"""Start-up options of the vLLM engine."""

from __future__ import annotations

from typing import Literal

from openai_bls_vllm.multi_node.nodes import NodeOptions

ClientChoice = Literal["auto", "core_client", "async_llm"]


class VllmOptions(NodeOptions, frozen=True, forbid_unknown_fields=True):
    """Start-up options of the vLLM engine; `OPENAI_BLS_ENGINE_VLLM_CLIENT` sets the field, and so on."""

    vllm_client: ClientChoice = "auto"
    """`core_client` speaks to vLLM's engine core directly, `async_llm` through the public `AsyncLLM`. `auto` is
    `core_client` from 0.24 to 0.33, else `async_llm`."""
