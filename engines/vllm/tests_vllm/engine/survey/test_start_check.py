"""What is looked at before a server is started: the interpreter, and its vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls_vllm.record import VllmRecord
from openai_bls_vllm.survey.start_check import check_start
from tests_vllm.recipe.vllm_support import make_interpreter

MANIFEST = Manifest("vllm", "m", 8, 1, 0, record=VllmRecord("0.32.0").fields())


def test_an_interpreter_that_is_not_there() -> None:
    with pytest.raises(EngineLoadError, match="/nowhere/python"):
        check_start(MANIFEST, "/nowhere/python")


def test_its_version_and_that_of_the_build(tmp_path: Path) -> None:
    python = make_interpreter(tmp_path, "0.31.0")
    assert check_start(MANIFEST, str(python)) == f"vLLM 0.31.0 (built with 0.32.0) of {python}"
