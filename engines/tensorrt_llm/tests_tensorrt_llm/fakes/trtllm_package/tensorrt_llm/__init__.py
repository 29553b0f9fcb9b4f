"""A fake TensorRT-LLM for tests: the calls that openai_bls makes of it, with the documented quirks.

tests_tensorrt_llm/fakes/README.md has how to use it.

A real package of this name must never be shadowed by accident: this one is only found where tests put its folder on
PYTHONPATH.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorrt_llm import _settings

if _settings.failure("import") == "missing":
    raise ModuleNotFoundError("No module named 'tensorrt_llm'", name="tensorrt_llm")
if _settings.failure("import") == "library":
    raise ImportError("libnvinfer.so.10: cannot open shared object file: No such file or directory")

__version__ = _settings.version()
IS_FAKE = True

print(f"[TensorRT-LLM] TensorRT-LLM version: {__version__}")  # noqa: T201
sys.stdout.flush()


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from tensorrt_llm import _llm

        return _llm.TensorRtLLM if _settings.release() < (1, 0) else _llm.TorchLLM
    if name == "SamplingParams":
        from tensorrt_llm._sampling_params import SamplingParams

        return SamplingParams
    if name in ("BuildConfig", "KvCacheConfig"):
        from tensorrt_llm import llmapi

        return getattr(llmapi, name)
    raise AttributeError(f"module 'tensorrt_llm' has no attribute {name!r}")
