from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.generation.continuous_batching import continuous_api

from openai_bls_transformers.runners import continuous_batching


@pytest.mark.parametrize(("device", "wanted"), [("cuda:3", ["reset", "cuda:3 is idle"]), ("cpu", ["reset"])])
def test_no_step_before_a_gpu_has_reset_its_inputs(
    device: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        continuous_api.ContinuousBatchingManager, "_create_batch_processor", lambda self: said.append("reset")
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda of: said.append(f"{of} is idle"))
    manager = object.__new__(continuous_batching._Manager)
    manager.batch_processor, manager.model = object(), SimpleNamespace(device=torch.device(device))
    manager._create_batch_processor()
    assert said == wanted
