"""Whether a vLLM engine takes images: by its vLLM, its checkpoint and the other options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.images import DEFAULT_MAX_IMAGES, with_processor
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.core.manifest import BuildError
from openai_bls_vllm.recipe.images import max_images
from openai_bls_vllm.survey.interpreter import Survey

SEES, BLIND = (Survey("3.12.3", has_vllm=True, version="0.32.0", takes_images=takes) for takes in (True, False))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "preprocessor_config.json").write_text("{}")
    return tmp_path


def asked(source: Path, survey: Survey, said: list[str], **changes: Any) -> int:
    return max_images(BuildOptions(str(source), source, engine="vllm", **changes), source, survey, said.append)


def test_as_many_as_asked_for_or_the_default(source: Path) -> None:
    assert asked(source, SEES, []) == DEFAULT_MAX_IMAGES
    assert asked(source, SEES, [], max_images=3) == 3
    assert asked(source, SEES, [], max_images=0) == 0
    said: list[str] = []
    assert asked(source, BLIND, said) == 0
    assert not said


def test_what_rules_them_out_is_said_or_refused(source: Path, tmp_path: Path) -> None:
    rooms: dict[str, Any] = {"lora": LoraOptions(max_loras=1)}
    said: list[str] = []
    assert asked(source, SEES, said, **rooms) == 0
    assert said == ["images are refused: not with adapters (--lora-dir, --max-loras)"]
    with pytest.raises(BuildError, match=r"--max-images 2: .*--lora-dir"):
        asked(source, SEES, [], max_images=2, **rooms)
    with pytest.raises(BuildError, match=r"--max-images 2: .*0\.32\.0"):
        asked(source, BLIND, [], max_images=2)
    with pytest.raises(BuildError, match="--max-images -1"):
        asked(source, SEES, [], max_images=-1)
    (tmp_path / "bare").mkdir()
    with pytest.raises(BuildError, match=r"preprocessor_config\.json"):
        asked(tmp_path / "bare", SEES, [], max_images=2)


def test_a_processor_that_does_not_load_leaves_text(source: Path) -> None:
    options = BuildOptions(str(source), source, engine="vllm")
    said: list[str] = []
    assert with_processor(0, options, source, said.append) == 0
    assert not said
    assert with_processor(8, options, source, said.append) == 0
    assert said[0].startswith("images are refused: the model's image processor does not load")
