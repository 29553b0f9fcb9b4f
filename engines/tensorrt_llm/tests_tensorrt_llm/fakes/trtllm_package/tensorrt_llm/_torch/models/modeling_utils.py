"""`tensorrt_llm._torch.models.modeling_utils`: the registry."""

from __future__ import annotations

MODEL_CLASS_MAPPING: dict[str, type] = {}
