"""Self-test of a build: the engine's process is started once, and its answers go into the manifest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.manifest import AnswerRecord, BuildError, EngineLoadError, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.null.record import NullSettings
from openai_bls_vllm.recipe.self_test import device_of, self_test
from openai_bls_vllm.survey.interpreter import Device, Survey

ON_CPU = Survey("3.11.0", has_vllm=True, version="0.32.0", device_type="cpu", dtype="float32")


def answers(folder: Path, null: NullSettings | None = None, python: str = sys.executable) -> AnswerRecord:
    """Of the null engine, which is loaded and asked as vLLM is."""
    names = ("checkpoint", "engine", "lora", "work", "tokenizer")
    checkpoint, engine, lora, work, tokenizer = (folder / name for name in names)
    prepared = Prepared(checkpoint, engine, lora, work, [tokenizer]).make()
    work.mkdir(exist_ok=True)
    manifest = Manifest("null", "m", 64, 4, 1, record=(null or NullSettings()).fields(), engine_python=python)
    return self_test(prepared, manifest, EngineSettings(), ON_CPU, lambda _: None)


def test_answers(tmp_path: Path) -> None:
    found = answers(tmp_path, NullSettings(token_ids=(5, 6, 7)))
    assert (found.device, found.dtype) == ("cpu", "float32")
    assert len(found.prompts) == len(found.token_ids) == len(found.logprobs) > 1
    assert all(tokens[:3] == [5, 6, 7] for tokens in found.token_ids)
    assert [len(row) for row in found.logprobs] == [len(tokens) for tokens in found.token_ids]


def test_an_engine_that_fails(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"self-test: .* log"):
        answers(tmp_path / "dies", NullSettings(token_ids=(5, 6), crash_at_step=1))
    with pytest.raises(BuildError, match=r"self-test: .*--no-self-test"):
        answers(tmp_path / "missing", python="/nowhere/python")


def test_the_name_of_a_device() -> None:
    assert device_of(ON_CPU) == "cpu"
    gpu = Survey("3.11.0", device_type="cuda", devices=[Device("NVIDIA H200", 1, "9.0")])
    assert device_of(gpu) == "NVIDIA H200 (9.0)"
