"""Check of settings and estimate of memory for a TensorRT-LLM engine; nothing here imports tensorrt_llm."""

from __future__ import annotations

from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.load_memory import of_checkpoint
from openai_bls.engines.plugin import LoadMemory, LoadRequest
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord

_PROCESS_BYTES = 3072 << 20
"""Libraries and buffers of the processes."""


def check_settings(manifest: Manifest, settings: EngineSettings) -> None:
    """Check settings of config.pbtxt for the engine of `manifest`.

    Raises:
        EngineLoadError: it would not load with one; one sentence.
    """
    record = TensorRtLlmRecord.of(manifest)
    if record.flow == "tensorrt" and settings.guided_decoding_backend == "llguidance":
        raise EngineLoadError(
            "guided_decoding_backend llguidance is not for TensorRT engines: use xgrammar, or build with --flow pytorch"
        )


def load_memory(request: LoadRequest) -> LoadMemory:
    """Weights and processes; the KV cache is on a GPU."""
    return of_checkpoint(request, _PROCESS_BYTES)
