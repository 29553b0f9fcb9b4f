"""Names of tensorrt_llm.llmapi.llm_args."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from tensorrt_llm import _options, _settings, _table

    if name == "LoraConfig":
        return _table.made(name)
    if name == "TorchLlmArgs" or (name == "TrtLlmArgs" and _settings.has_tensorrt()):
        return _table.made(name)
    if name in _options.classes():
        return _table.made(name) if name in _table.table()["classes"] else _options.made(name)
    raise AttributeError(f"module 'tensorrt_llm.llmapi.llm_args' has no attribute {name!r}")
