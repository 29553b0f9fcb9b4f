"""Time steps of state-space layers, in a pass over a whole text and token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openai_bls_transformers import cache_argument
from openai_bls_transformers.model import time_steps
from tests_transformers.architectures.checkpoint import make_checkpoint
from tests_transformers.architectures.table import CASES, UNLIMITED


@torch.no_grad()  # type: ignore[untyped-decorator]
def distance(model: Any) -> float:
    """Largest difference of the logits of a text that comes token by token from those of one pass over it."""
    ids = torch.randint(3, 100, (1, 12), generator=torch.Generator().manual_seed(1))
    whole = model(ids, use_cache=False).logits[0]
    output = model(ids[:, :4], use_cache=True)
    steps = []
    for at in range(4, 12):
        output = model(ids[:, at : at + 1], **{cache_argument.NAME: output[cache_argument.NAME]}, use_cache=True)
        steps.append(output.logits[0, -1])
    return float((whole[4:] - torch.stack(steps)).abs().max())


@pytest.mark.parametrize("name", ["nemotron_h", "zamba2"])
def test_the_default_limits_hold_in_every_pass(name: str, tmp_path: Path) -> None:
    """The day on which transformers holds them itself, the first assertion fails, and the module can go."""
    changes = {field: value for field, value in CASES[name].changes.items() if field not in UNLIMITED}
    make_checkpoint(tmp_path, name, changes)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    assert distance(model) > 0.01
    for _ in range(2):  # the second time as for a further model
        assert time_steps.hold(model)
        assert distance(model) < 1e-3


def test_other_models_are_left_alone(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "bamba", CASES["bamba"].changes)
    assert not time_steps.hold(AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32"))
