from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from openai_bls.triton_models.config_writer import render
from openai_bls.triton_models.tensors import MODELS, Model, Tensor

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_the_committed_file_is_the_rendered_one(model: Model) -> None:
    assert (REPOSITORY / model.name / "config.pbtxt").read_text(encoding="utf-8") == render(model)


def test_the_repository_holds_these_models_and_no_others() -> None:
    # Those of further engines are built, hence not in git.
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} == set(MODELS)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_every_model_has_a_version_folder_and_no_placeholder(model: Model) -> None:
    assert (REPOSITORY / model.name / "1").is_dir()
    assert "${" not in render(model)
    # Triton takes the folder of a package for the model's own.
    assert not (REPOSITORY / model.name / "__init__.py").exists()


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_brackets_balance_and_no_section_ends_in_a_comma(model: Model) -> None:
    text = re.sub(r'"(\\.|[^"\\])*"', '""', render(model))
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for left, right in ("[]", "{}"):
        assert text.count(left) == text.count(right)
    assert not re.search(r",\s*[\]}]", text)


def test_values_are_quoted() -> None:
    model = Model("m", 0, (Tensor("i", "BOOL", (1,)),), (Tensor("o", "FP32", (-1, 2)),), parameters={"k": 'a"\\b'})
    text = render(model)
    assert 'string_value: "a\\"\\\\b"' in text
    assert '{ name: "i" data_type: TYPE_BOOL dims: [ 1 ] }' in text
    assert '{ name: "o" data_type: TYPE_FP32 dims: [ -1, 2 ] }' in text
