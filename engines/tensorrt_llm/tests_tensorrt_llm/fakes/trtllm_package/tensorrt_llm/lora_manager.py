"""Names of tensorrt_llm.lora_manager; later versions define `LoraConfig` in lora_helper and import it here."""

from __future__ import annotations

from tensorrt_llm._recorded import table

LoraConfig = table.made("LoraConfig")
