"""Ranks of TensorRT-LLM's LLM API that `trtllm-llmapi-launch` has started, on this machine and others."""

from __future__ import annotations

from collections.abc import Mapping

PROXY_VARIABLE = "TLLM_SPAWN_PROXY_PROCESS"
"""Environment variable that is 1 in the process that rank 0 runs: the LLM API starts no ranks itself there."""


def ranks_are_started(environment: Mapping[str, str]) -> bool:
    """True if the LLM API finds its ranks started."""
    return environment.get(PROXY_VARIABLE) == "1"
