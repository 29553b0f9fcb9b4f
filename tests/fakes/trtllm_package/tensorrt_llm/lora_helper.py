"""Names of tensorrt_llm.lora_helper, of 1.1 and later."""

from __future__ import annotations

from tensorrt_llm import _settings, _table

if _settings.release() < (1, 1):
    raise ModuleNotFoundError("No module named 'tensorrt_llm.lora_helper'", name="tensorrt_llm.lora_helper")

LoraConfig = _table.made("LoraConfig")
