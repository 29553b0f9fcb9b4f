"""Every architecture of the table, from a checkpoint to tokens: exact by the runner that
engines/transformers/docs/models.md names, or refused at the build with the sentence there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.builder.repositories import make_repository
from tests_transformers.architectures import page
from tests_transformers.architectures.checkpoint import make_checkpoint
from tests_transformers.architectures.comparison import Generated, compare, difference
from tests_transformers.architectures.table import CASES

IN_EVERY_RUN = (
    "bloom",
    "deepseek_v3",
    "diffllama",
    "falcon (rotary)",
    "gemma2",
    "gpt_oss",
    "llama4_text",
    "mamba2",
    "mistral",
    "qwen3_5_text",
    "recurrent_gemma",
    "stablelm",
)
"""Those that fail in different ways under continuous batching, and two that do not. All others are marked."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository") / "model_repository")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.architectures) for name in CASES]
)
def test_equals_generate_or_is_refused(name: str, repository: Path, tmp_path: Path) -> None:
    case, threads = CASES[name], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        make_checkpoint(tmp_path / "tiny", case.model_type, case.changes, case.seed)
        assert compare(tmp_path / "tiny", repository) == page.read()[name]
    finally:
        torch.set_num_threads(threads)


def test_page_lists_every_case() -> None:
    assert set(page.read()) == set(CASES)
    assert {result.outcome for result in page.read().values()} <= set(page.OUTCOMES)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "told"),
    [
        ([5, 6], [-1.0, -2.0], ""),
        ([5, 7], [-1.0, -2.0], "token 1 is 7 instead of 6"),
        ([9, 8], [-1.0, -3.0], ""),
        ([5, 6], [-1.0, -2.1], "log-probability -2.1000 instead of -2.0000 at token 1"),
        ([5], [-1.0], "1 tokens instead of 2"),
    ],
    ids=["equal", "another token", "a tie, and then anything", "another log-probability", "too few"],
)
def test_differences_are_told(tokens: list[int], logprobs: list[float], told: str) -> None:
    assert difference(Generated(tokens, logprobs), Generated([5, 6], [-1.0, -2.0], [1e-5, 0.5])) == told
