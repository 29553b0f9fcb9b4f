"""Names of tensorrt_llm.llmapi."""

from __future__ import annotations

from typing import Any

_VALUES = (
    "BuildConfig",
    "CalibConfig",
    "CapacitySchedulerPolicy",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "QuantAlgo",
    "QuantConfig",
    "SchedulerConfig",
)


def __getattr__(name: str) -> Any:
    from tensorrt_llm import _settings
    from tensorrt_llm._recorded import table

    if name == "SamplingParams":
        from tensorrt_llm._sampling_params import SamplingParams

        return SamplingParams
    if name in ("CompletionOutput", "RequestOutput", "RequestError"):
        from tensorrt_llm import _result

        return getattr(_result, name)
    if name in _VALUES and not (name == "BuildConfig" and not _settings.has_tensorrt()):
        return table.made(name)
    raise AttributeError(f"module 'tensorrt_llm.llmapi' has no attribute {name!r}")
