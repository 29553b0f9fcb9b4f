"""Every vision-language architecture of the table, from a checkpoint to tokens: prompts with images get the tokens and
log-probabilities of transformers' `generate`, together and alone, by the runner that docs/models.md of the engine
names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.builder.repositories import make_repository
from tests_transformers.architectures import page
from tests_transformers.architectures.vision_checkpoint import make_vision_checkpoint
from tests_transformers.architectures.vision_comparison import compare
from tests_transformers.architectures.vision_table import CASES

IN_EVERY_RUN = ("gemma3", "idefics3", "llava", "qwen2_5_vl")
"""Masks inside an image, images in pieces, the plainest one, and positions with three axes. All others are marked."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.architectures) for name in CASES]
)
def test_prompts_with_images_equal_generate(name: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        make_vision_checkpoint(tmp_path / "tiny", name, CASES[name])
        repository, text = make_repository(tmp_path / "model_repository"), not CASES[name].needs_image
        assert compare(tmp_path / "tiny", repository, text=text) == page.read(page.IMAGES)[name]
    finally:
        torch.set_num_threads(threads)


def test_page_lists_every_case() -> None:
    assert set(page.read(page.IMAGES)) == set(CASES)
    assert {result.outcome for result in page.read(page.IMAGES).values()} <= set(page.OUTCOMES)
