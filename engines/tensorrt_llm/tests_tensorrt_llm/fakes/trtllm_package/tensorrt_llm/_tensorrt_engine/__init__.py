"""`tensorrt_llm._tensorrt_engine`, of 1.0 to 1.3.0rc20."""

from __future__ import annotations

from tensorrt_llm import _settings

if _settings.release() < (1, 0) or not _settings.has_tensorrt():
    raise ModuleNotFoundError("No module named 'tensorrt_llm._tensorrt_engine'", name="tensorrt_llm._tensorrt_engine")

from tensorrt_llm import _llm

LLM = _llm.TensorRtLLM

__all__ = ["LLM"]
