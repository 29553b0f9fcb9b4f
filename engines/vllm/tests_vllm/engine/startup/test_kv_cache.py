"""Estimate of the memory that a load takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls.engines.plugin import LoadMemory
from openai_bls_vllm.record import VllmRecord
from tests.engine_contract.memory import GIB, estimate, write_engine


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path, "vllm", record=VllmRecord("0.32.0").fields(), dtype="bfloat16")


def test_on_a_cpu(engine: Path) -> None:
    assert estimate(engine) == LoadMemory(3 * GIB + GIB + 3 * GIB)


def test_engines_on_a_gpu_take_turns(engine: Path) -> None:
    assert estimate(engine, gpu=True).on_gpu
