from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Model, Tensor
from openai_bls.triton_models.tensors.models import MODELS

REPOSITORY = Path(__file__).parents[4] / "model_repository"


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_the_committed_file_is_the_rendered_one(model: Model) -> None:
    text = (REPOSITORY / model.name / "config.pbtxt").read_text(encoding="utf-8")
    assert text == render(model)
    assert "${" not in text
    # As Triton itself reads it.
    assert text_format.Parse(text, model_config_pb2.ModelConfig()).name == model.name
    assert (REPOSITORY / model.name / "1").is_dir()
    # Triton takes the folder of a package for the model's own.
    assert not (REPOSITORY / model.name / "__init__.py").exists()


def test_the_repository_holds_these_models_and_no_others() -> None:
    # Those of further engines are built, hence not in git.
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} == set(MODELS)


def test_values_are_quoted() -> None:
    model = Model("m", 0, (Tensor("i", "BOOL", (1,)),), (Tensor("o", "FP32", (-1, 2)),), parameters={"k": 'a"\\b'})
    text = render(model)
    assert 'string_value: "a\\"\\\\b"' in text
    assert '{ name: "i" data_type: TYPE_BOOL dims: [ 1 ] }' in text
    assert '{ name: "o" data_type: TYPE_FP32 dims: [ -1, 2 ] }' in text
