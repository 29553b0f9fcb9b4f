"""Environment variables of vLLM's processes, set before vllm is imported."""

from __future__ import annotations

import os
from collections.abc import Container, MutableMapping

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


_NAN_COUNTS = "VLLM_COMPUTE_NANS_IN_LOGITS"
_NAN_COUNTS_COST_NOTHING = "VLLM_RAISE_ON_LOGIT_NANS"
"""Variable of the versions whose counts of NaN travel with a step's tokens; in older ones each step waits for them."""


def count_nans(known: Container[str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Let vLLM count the NaN in a request's logits, where that costs nothing and the operator has not said otherwise.

    Args:
        known: names of the variables that the installed vLLM reads.
        environ: environment of vLLM's processes.
    """
    if _NAN_COUNTS_COST_NOTHING in known:
        environ.setdefault(_NAN_COUNTS, "1")


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what vLLM reads when it is imported; of `DEFAULTS` only what the operator has not set."""
    environ.update(ALWAYS)
    for name, value in DEFAULTS.items():
        environ.setdefault(name, value)
