"""A processor next to the tokenizer: its files, and its class where only the type of the model says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openai_bls.builder.tokenizer.processor import place_processor


def write(folder: Path, **files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, contents in files.items():
        (folder / f"{name}.json").write_text(json.dumps(contents))
    return folder


@pytest.mark.parametrize("named", ["preprocessor_config", "tokenizer_config", ""])
def test_the_class_is_in_the_files(named: str, tmp_path: Path) -> None:
    own = {"processor_class": "LlavaProcessor"}
    source = write(
        tmp_path / "source",
        config={"model_type": "llava_next"},
        preprocessor_config={"image_processor_type": "CLIPImageProcessor", **(own if "pre" in named else {})},
    )
    target = write(tmp_path / "target", tokenizer_config=own if "token" in named else {})
    place_processor(source, target)
    assert json.loads((target / "preprocessor_config.json").read_text())["image_processor_type"]
    made = target / "processor_config.json"
    assert made.is_file() == (not named)
    if not named:
        assert json.loads(made.read_text()) == {"processor_class": "LlavaNextProcessor"}
    assert not (source / "processor_config.json").exists()


def test_a_model_without_a_processor_gets_none(tmp_path: Path) -> None:
    source = write(tmp_path / "source", config={"model_type": "llama"})
    target = write(tmp_path / "target", tokenizer_config={})
    place_processor(source, target)
    assert [path.name for path in target.iterdir()] == ["tokenizer_config.json"]
