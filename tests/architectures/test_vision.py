"""Every vision-language architecture of the table, from a checkpoint to tokens: prompts with images get the tokens and
log-probabilities of transformers' `generate`, together and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.architectures.comparison import Result
from tests.architectures.vision_checkpoint import make_vision_checkpoint
from tests.architectures.vision_comparison import compare
from tests.architectures.vision_table import CASES
from tests.unit.builder.tensorrt_llm.build_support import make_repository
from tests.unit.docs.pages import ROOT

IN_EVERY_RUN = ("gemma3", "idefics3", "qwen2_5_vl")
"""Masks inside an image, images in pieces, and positions with three axes. All others are marked."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.architectures) for name in CASES]
)
def test_prompts_with_images_equal_generate(name: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        make_vision_checkpoint(tmp_path / "tiny", name, CASES[name])
        repository, text = make_repository(tmp_path / "model_repository"), not CASES[name].needs_image
        assert compare(tmp_path / "tiny", repository, text=text) == Result("images")
    finally:
        torch.set_num_threads(threads)


def test_page_lists_every_case() -> None:
    page = (ROOT / "docs" / "embedded-models.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| with images |"))
    assert row.split("|")[2].strip().split(", ") == sorted(CASES)
