"""`tensorrt_llm._torch`, whose LLM was the way to the PyTorch flow before 1.0."""

from __future__ import annotations

from tensorrt_llm import _llm

LLM = _llm.TorchLLM

__all__ = ["LLM"]
