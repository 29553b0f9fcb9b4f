"""Record of a vLLM engine in engine.json."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.core.manifest import AnswerRecord, ParallelRecord
from openai_bls_vllm.pooling import Task


class VllmRecord(ParallelRecord, frozen=True, forbid_unknown_fields=True):
    """Build record of an engine of the kind `vllm`: version and options."""

    quant: str = ""
    """Value of vLLM's `quantization`; empty is the checkpoint's own."""
    task: Task = "generate"
    """What the engine does; all but `generate` are vLLM's runner `pooling`."""
    extra_engine_args: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further fields of `AsyncEngineArgs`, from the YAML file of `--extra-engine-args`."""
    answers: AnswerRecord | None = None
    """Outcome of the build's self-test; None if the build left it out."""
