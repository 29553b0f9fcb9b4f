"""Every family of the table, from a folder to text: what /v1/chat/completions says is what transformers' chat pipeline
says, and what the family's template writes of thoughts and calls is read; or the build is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from openai_bls.commands.main import REFUSED
from openai_bls.output.detect import HARMONY, TOOL_FORMATS
from tests.unit.builder.repositories import make_repository
from tests.unit.triton_models.preprocessing import tokenizer_families
from tests_transformers.architectures.vision_checkpoint import make_vision_checkpoint
from tests_transformers.architectures.vision_table import CASES as VISION
from tests_transformers.zoo.checkpoint import make_checkpoint
from tests_transformers.zoo.comparison import build, complete_tokenizer, differences, picture_differences
from tests_transformers.zoo.table import FAMILIES

PICTURES = [name for name in VISION if name != "smolvlm"]
"""`smolvlm` asks its processor's part for video, which needs torchvision; it is built as `idefics3` is."""
IN_EVERY_RUN = (
    "Command A",
    "CPM-Ant",
    "ERNIE 4.5 (MoE)",
    "Gemma 4",
    "GLM 4.5",
    "gpt-oss",
    "Granite 3",
    "Llama 2",
    "Llama 3.1",
    "Mistral 7B (v0.3)",
    "Phi 3",
    "Qwen 3.5",
    "WordPiece decoder",
    "XGLM",
)
"""Every kind of vocabulary, a class that the model's type decides, forms whose markers are special tokens, one that is
a whole format, and a refusal. All others are marked, as are most of those with pictures."""


def _marked(names: list[str], unmarked: tuple[str, ...]) -> list[object]:
    marks = pytest.mark.architectures
    return [pytest.param(name, marks=() if name in unmarked else marks) for name in names]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "model_repository")


@pytest.mark.parametrize("name", _marked(list(FAMILIES), IN_EVERY_RUN))
def test_text_is_that_of_the_chat_pipeline_or_the_build_is_refused(name: str, repository: Path, tmp_path: Path) -> None:
    family = FAMILIES[name]
    make_checkpoint(tmp_path / "tiny", family)
    status, error = build(tmp_path / "tiny", repository)
    if family.refused:
        assert status == REFUSED
        assert family.refused in error
        assert len(error.strip().splitlines()) == 1
        return
    assert (status, error) == (0, "")
    assert differences(family, tmp_path / "tiny", repository) == []


@pytest.mark.parametrize("name", _marked(PICTURES, ("llava", "qwen2_5_vl")))
def test_text_about_two_pictures_is_that_of_the_pipeline(name: str, repository: Path, tmp_path: Path) -> None:
    make_vision_checkpoint(tmp_path / "tiny", name, VISION[name])
    complete_tokenizer(tmp_path / "tiny")
    assert build(tmp_path / "tiny", repository) == (0, "")
    assert picture_differences(tmp_path / "tiny", repository) == []


def test_the_table_has_every_form_of_calls_and_kind_of_tokenizer() -> None:
    written = {family.calls for family in FAMILIES.values() if not family.refused}
    assert {*TOOL_FORMATS, HARMONY} <= written
    assert {family.shape for family in FAMILIES.values()} == {*tokenizer_families.FAMILIES}
