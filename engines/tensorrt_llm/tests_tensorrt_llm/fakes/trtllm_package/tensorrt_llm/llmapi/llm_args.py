"""Names of tensorrt_llm.llmapi.llm_args."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from tensorrt_llm import _settings
    from tensorrt_llm._recorded import options, table

    if name == "LoraConfig":
        return table.made(name)
    if name == "TorchLlmArgs" or (name == "TrtLlmArgs" and _settings.has_tensorrt()):
        return table.made(name)
    if name in options.classes():
        return table.made(name) if name in table.table()["classes"] else options.made(name)
    raise AttributeError(f"module 'tensorrt_llm.llmapi.llm_args' has no attribute {name!r}")
