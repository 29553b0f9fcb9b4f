"""Checks and estimate of the embedded engine before it is loaded; nothing here imports torch."""

from __future__ import annotations

import importlib.util
import sys

from openai_bls.core import installing
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.load_memory import of_checkpoint
from openai_bls.engines.plugin import LoadMemory, LoadRequest
from openai_bls_transformers.cache_memory import CPU_CACHE_BYTES
from openai_bls_transformers.options import EngineOptions, with_settings

_PROCESS_BYTES = 512 << 20
"""Libraries and buffers of the process."""


def problem() -> str:
    """Packages that the engine needs and this Python lacks, as a sentence; empty if it has all."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"the embedded engine needs {' and '.join(missing)}, which {sys.executable} does not have: "
        + installing.with_engine("transformers")
    )


def check_settings(manifest: Manifest, settings: EngineSettings) -> None:
    """Check settings of config.pbtxt for the engine of `manifest`.

    Raises:
        EngineLoadError: it would not load with one; one sentence.
    """
    tokens = with_settings(EngineOptions(), settings).max_tokens_in_kv_cache
    if tokens and tokens < manifest.max_model_len:
        raise EngineLoadError(
            f"max_tokens_in_paged_kv_cache {tokens} does not hold one sequence of {manifest.max_model_len} tokens"
        )


def load_memory(request: LoadRequest) -> LoadMemory:
    """Weights in the type that they are computed in, the KV cache, and the process."""
    longest = request.manifest.max_model_len
    if isinstance(request.options, EngineOptions) and request.options.device == "cpu":
        request = request._replace(gpu=False)
    return of_checkpoint(
        request, _PROCESS_BYTES, lambda facts: max(facts.kv_bytes_per_token * longest, CPU_CACHE_BYTES)
    )
