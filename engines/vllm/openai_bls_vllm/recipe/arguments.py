"""Options of `openai-bls build` that only vLLM has."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from openai_bls_vllm.pooling import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("vLLM (engines/vllm/docs/vllm.md)")
    group.add_argument(
        "--extra-engine-args",
        type=Path,
        metavar="FILE",
        help="YAML with further fields of vLLM's AsyncEngineArgs: gpu_memory_utilization, speculative_config ...",
    )
    group.add_argument(
        "--task",
        choices=get_args(Task),
        help="generate (default); embed for /v1/embeddings, score for /v1/rerank and /v1/score, classify for "
        "/v1/classify and /v1/moderations, reward for /v1/classify: vLLM's runner `pooling`",
    )
    group.add_argument(
        "--engine-python",
        metavar="PYTHON",
        help="interpreter with vLLM (default: OPENAI_BLS_ENGINE_PYTHON, that of `install-engine vllm`, this one)",
    )
