"""Names of tensorrt_llm.sampling_params."""

from __future__ import annotations

from tensorrt_llm._recorded import table
from tensorrt_llm._sampling_params import SamplingParams

GuidedDecodingParams = table.made("GuidedDecodingParams")

__all__ = ["GuidedDecodingParams", "SamplingParams"]
