"""Manifest of an engine of some ranks."""

from __future__ import annotations

from openai_bls.core.manifest import Manifest
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord


def engine(ranks: int, *, by_server: bool = False) -> Manifest:
    """Manifest of an engine, which `by_server` is for the C++ backend."""
    pipeline = 2 if ranks % 2 == 0 else 1
    record = TensorRtLlmRecord("1.2.1", ranks // pipeline, pipeline, backend="cpp" if by_server else "python")
    return Manifest("tensorrt_llm", "m", max_model_len=9, max_batch_size=1, created=1, record=record.fields())
