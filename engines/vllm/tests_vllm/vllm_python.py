"""Interpreter with the real vLLM, for the tests that run it: `.venv-vllm` of the checkout, which `make test` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

VARIABLE = "OPENAI_BLS_TEST_VLLM_PYTHON"
_NEEDED = "OPENAI_BLS_TESTS_NEED_TOOLS"


def vllm_python() -> str:
    """Path of the interpreter; the test is left out where there is none, and fails where all tools are to be there."""
    path = os.environ.get(VARIABLE) or str(ROOT / ".venv-vllm" / "bin" / "python")
    if not os.access(path, os.X_OK):
        reason = f"no vLLM at {path}: `openai-bls install-engine vllm`, or {VARIABLE}"
        # For Python 3.10 there is none.
        if os.environ.get(_NEEDED) and sys.version_info >= (3, 11):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def output_of(python: str, script: Path, *arguments: str, given: str) -> str:
    """Last line that a script prints, which an interpreter with vLLM runs over this checkout.

    Args:
        python: path of the interpreter.
        script: path of the script.
        arguments: its arguments.
        given: its standard input.
    """
    ran = subprocess.run(
        [python, str(script), *arguments],
        input=given,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "engines" / "vllm")]),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()[-1]
