"""Names of tensorrt_llm.plugin.plugin."""

from __future__ import annotations

from tensorrt_llm._recorded import table

PluginConfig = table.made("PluginConfig")
