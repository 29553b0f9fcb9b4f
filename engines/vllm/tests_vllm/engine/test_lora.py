"""Adapters in vLLM's terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.engine import LoraError
from openai_bls_vllm import lora
from tests_transformers.engine.adapters import make_adapter


def test_the_number_is_of_name_and_contents(checkpoint: Path, tmp_path: Path) -> None:
    one = make_adapter(checkpoint, tmp_path / "one", r=2, target_modules=["q_proj"])
    other = make_adapter(checkpoint, tmp_path / "other", seed=2, r=2, target_modules=["q_proj"])
    first = lora.read("a", one, checkpoint, 8)
    assert lora.read("a", one, checkpoint, 8) == first
    found = [lora.read("b", one, checkpoint, 8), lora.read("a", other, checkpoint, 8)]
    assert len({adapter.key for adapter in (first, *found)}) == 3
    assert len({adapter.number for adapter in (first, *found)}) == 3
    assert lora.read("a", one, checkpoint, 8, [first.number]).number not in (0, first.number)


def test_what_vllm_does_not_apply_in_full_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    patterned: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj"],
        "rank_pattern": {"k_proj": 2},
    }
    with pytest.raises(LoraError, match="rank_pattern"):
        lora.read("a", make_adapter(checkpoint, tmp_path / "a", **patterned), checkpoint, 8)
    folder = make_adapter(checkpoint, tmp_path / "b", r=4, target_modules=["q_proj"])
    with pytest.raises(LoraError, match="up to 2"):
        lora.read("b", folder, checkpoint, 2)


@pytest.mark.parametrize(("rank", "most"), [(1, 8), (8, 8), (9, 16), (257, 320), (512, 512)])
def test_ranks_are_rounded_up(rank: int, most: int) -> None:
    assert lora.vllm_max_rank(rank) == most


def test_a_rank_beyond_all() -> None:
    with pytest.raises(LoraError, match="513"):
        lora.vllm_max_rank(513)
