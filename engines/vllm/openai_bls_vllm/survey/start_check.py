"""Check of a vLLM engine before a server is started: its interpreter, vLLM's version, and the number of GPUs."""

from __future__ import annotations

import os

from openai_bls.core.machine.nvidia_smi import visible_gpus
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls_vllm.record import VllmRecord
from openai_bls_vllm.survey.interpreter import find, located, require_version


def check_start(manifest: Manifest, python: str) -> str:
    """Program that will run the engine, e.g. `vLLM 0.32.0 of /srv/.venv-vllm/bin/python`.

    Args:
        manifest: manifest of the engine.
        python: interpreter of the engine's process; empty is the Triton model's own.

    Raises:
        EngineLoadError: it cannot run here; one sentence.
    """
    record = VllmRecord.of(manifest)
    if python and "/" in python and not os.access(python, os.X_OK):
        raise EngineLoadError(
            f"its interpreter {python} is not there: run `openai-bls install-engine vllm` and build again, or name "
            "another with OPENAI_BLS_ENGINE_PYTHON"
        )
    here = located(python, "engine_python") if python else ""
    ranks, nodes = record.world_size, int(record.extra_engine_args.get("nnodes", 1))
    needed = -(-ranks // nodes)
    gpus = visible_gpus()
    # Where the machine shows none, there is nothing to compare with.
    if gpus and needed > len(gpus):
        raise EngineLoadError(
            f"it needs {needed} GPUs on this machine (--tp-size {record.tensor_parallel_size}, --pp-size "
            f"{record.pipeline_parallel_size}), and {len(gpus)} are visible: build it with fewer, or make more visible "
            "(CUDA_VISIBLE_DEVICES)"
        )
    if not here:
        return f"vLLM {record.version}"
    survey = find(here)
    require_version(here, survey)
    built = f" (built with {record.version})" if survey.version and survey.version != record.version else ""
    return f"vLLM {survey.version or record.version}{built} of {here}"
