"""Environment variables of vLLM's processes, set before vllm is imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

ALWAYS = {
    # No reports to vLLM's makers.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    # A process with threads must not be forked.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Its processes' titles must not overwrite their environments, by which they are found.
    "SPT_NOENV": "1",
}
DEFAULTS = {
    # All files of a model lie in its folder.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Large models take longer to load than vLLM's own 10 minutes.
    "VLLM_ENGINE_READY_TIMEOUT_S": "7200",
    # Binding to cores of its choosing ignores what else runs on them, Triton for one.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what vLLM reads when it is imported; of `DEFAULTS` only what the operator has not set."""
    environ.update(ALWAYS)
    for name, value in DEFAULTS.items():
        environ.setdefault(name, value)
