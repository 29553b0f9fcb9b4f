"""Names of tensorrt_llm.plugin.plugin."""

from __future__ import annotations

from tensorrt_llm import _table

PluginConfig = _table.made("PluginConfig")
