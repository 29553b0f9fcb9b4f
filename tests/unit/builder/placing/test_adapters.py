"""Adapters of a build: what is said of those that may be of another model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openai_bls.builder.options.lora import LoraOptions
from tests.unit.builder.builds import refusal, run
from tests.unit.builder.repositories import make_adapter

BASES = {
    "tiny-qwen": "",
    "org/Tiny-Qwen": "",
    "/data/models/tiny-qwen/": "",
    "org/grand-qwen": "",
    "org/other": "org/other",
    "/data/other": "/data/other",
}
"""`base_model_name_or_path` → what is told of it, where the model is tiny-qwen, made of org/grand-qwen."""


@pytest.mark.parametrize("base", BASES)
def test_the_base_model_is_held_against_the_model(base: str, source: Path, repository: Path, tmp_path: Path) -> None:
    config = source / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"_name_or_path": "org/grand-qwen"}))
    folder = make_adapter(tmp_path / "poet", base_model_name_or_path=base)
    _, lines = run(source, repository, engine="transformers", lora=LoraOptions({"poet": folder}))
    told = [line for line in lines if "base_model_name_or_path" in line]
    assert len(told) == bool(BASES[base])
    assert all("poet" in line and BASES[base] in line for line in told)


def test_an_adapter_that_names_no_base_model(source: Path, repository: Path, tmp_path: Path) -> None:
    _, lines = run(source, repository, lora=LoraOptions({"poet": make_adapter(tmp_path / "poet")}))
    assert not any("base_model_name_or_path" in line for line in lines)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pointer_is_no_adapter(name: str, source: Path, repository: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "poet")
    (folder / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98\n")
    told = refusal(source, repository, lora=LoraOptions({"poet": folder}))
    assert f"poet: {name} is a git-LFS pointer, not the file: run `git lfs pull`" in told


def test_a_rank_that_the_matrices_do_not_have(source: Path, repository: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "poet", r=4)
    assert "r in adapter_config.json is 4, " in refusal(source, repository, lora=LoraOptions({"poet": folder}))
