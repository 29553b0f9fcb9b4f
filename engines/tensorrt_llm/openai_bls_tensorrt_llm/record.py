"""Record of a TensorRT-LLM engine in engine.json."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from openai_bls.core.manifest import NotNegative, ParallelRecord, Positive


class TensorRtLlmRecord(ParallelRecord, frozen=True, forbid_unknown_fields=True):
    """Build record of an engine of the kind `tensorrt_llm`: versions, GPU and options. A TensorRT engine runs with the
    version that built it and no other."""

    flow: Literal["tensorrt", "pytorch"] = "tensorrt"
    """`tensorrt`: an engine in `engine/`. `pytorch`: the checkpoint in `checkpoint/` is loaded as it is."""
    backend: Literal["python", "cpp"] = "python"
    """Triton backend that runs it: our model.py over the LLM API, or the C++ backend `tensorrtllm`."""
    gpu: str = ""
    """Name of the GPU it was built on; empty if there was none (flow `pytorch`)."""
    compute_capability: str = ""
    """Compute capability of that GPU, e.g. `9.0`. A TensorRT engine runs on no other."""
    quant: str = ""
    """Value of `--quant`; empty is none beyond the checkpoint's own."""
    kv_cache_dtype: str = "auto"
    max_input_len: Positive = 1
    """Tokens of a prompt."""
    max_num_tokens: NotNegative = 0
    """Tokens of one step; 0 is not known."""
    max_beam_width: Positive = 1
    gather_logits: bool = False
    """The engine returns log-probabilities (flow `tensorrt`)."""
    plugins: dict[str, str] = msgspec.field(default_factory=dict)
    extra_llm_api_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further arguments of `LLM`, from the YAML file of `--extra-llm-api-options` (flow `pytorch`)."""
