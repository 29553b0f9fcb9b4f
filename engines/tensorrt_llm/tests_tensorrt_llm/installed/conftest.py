"""The fake TensorRT-LLM of the tests in this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests_tensorrt_llm.installed.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
