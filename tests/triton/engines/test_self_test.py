"""A server whose engine's weights are not what they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from openai_bls.launcher.testing import ServerFailedError, run_server

pytestmark = pytest.mark.triton


def test_corrupt_weights_are_not_served(repository: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(repository, tmp_path / "model_repository"))
    weights = copy / "tensorrt_llm" / "1" / "checkpoint" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 65536] = bytes(65536)
    weights.write_bytes(data)
    alone = ["--model-control-mode=explicit", "--load-model=tensorrt_llm"]
    with pytest.raises(ServerFailedError) as caught, run_server(copy, args=alone):
        pass
    assert "model tensorrt_llm failed to load" in str(caught.value)
    assert "last self-test" in str(caught.value)
    assert "compare the files with `openai-bls verify`" in str(caught.value)
