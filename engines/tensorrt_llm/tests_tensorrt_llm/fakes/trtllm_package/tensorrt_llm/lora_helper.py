"""Names of tensorrt_llm.lora_helper, of 1.1 to 1.3."""

from __future__ import annotations

from tensorrt_llm import _settings
from tensorrt_llm._recorded import table

if not (1, 1) <= _settings.release() < (1, 4):
    raise ModuleNotFoundError("No module named 'tensorrt_llm.lora_helper'", name="tensorrt_llm.lora_helper")

LoraConfig = table.made("LoraConfig")
