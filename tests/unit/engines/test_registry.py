"""Which engine is made, and the sentence where none can be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    EngineLoadError,
    Manifest,
    load_manifest,
    write_manifest,
)
from openai_bls.engines.null.loading import NullOptions
from openai_bls.engines.null.record import NullSettings
from openai_bls.engines.registry import create_engine, names, parse_options
from tests.engine_contract.support import Recorder, change


def sentence(folder: Path, **overrides: str) -> str:
    with pytest.raises(EngineLoadError) as caught:
        create_engine(folder, Recorder(), overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_empty_folder(tmp_path: Path) -> None:
    empty = tmp_path / "model_repository" / "tensorrt_llm" / "1"
    empty.mkdir(parents=True)
    message = sentence(empty)
    assert message.startswith("no engine in model_repository/tensorrt_llm/1: run")
    assert str(tmp_path) not in message


@pytest.mark.parametrize("name", ["auto", *names()])
def test_every_engine_may_be_named(name: str) -> None:
    """One that has no options, too."""
    assert parse_options({"engine": name})[0] == name


def test_an_engine_of_another_release(tmp_path: Path) -> None:
    manifest = Manifest(engine="sglang", model_name="m", max_model_len=9, max_batch_size=1, created=1)
    write_manifest(tmp_path, manifest)
    with pytest.raises(EngineLoadError, match=f"'sglang'; .*{', '.join(names())}"):
        create_engine(tmp_path, Recorder())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"engine": "transformers"}', b"\xff\xfe"])
def test_unreadable_manifest(folder: Path, content: bytes) -> None:
    (folder / MANIFEST_NAME).write_bytes(content)
    assert "not readable" in sentence(folder)


def test_unknown_field_and_newer_format(folder: Path) -> None:
    fields = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / MANIFEST_NAME).write_text(json.dumps(fields | {"later_invention": 1}))
    assert "later_invention" in sentence(folder)
    fields |= {"later_invention": 1, "format_version": FORMAT_VERSION + 1}
    (folder / MANIFEST_NAME).write_text(json.dumps(fields))
    assert "newer" in sentence(folder)


def test_an_engine_for_several_gpus_of_an_older_release(folder: Path) -> None:
    fields = json.loads((folder / MANIFEST_NAME).read_text())
    before = load_manifest(folder)
    (folder / MANIFEST_NAME).write_text(json.dumps(fields | {"tensor_parallel_size": 1}))
    assert load_manifest(folder) == before
    (folder / MANIFEST_NAME).write_text(json.dumps(fields | {"tensor_parallel_size": 4}))
    assert "run `openai-bls build --engine vllm --tp-size 4 --model <checkpoint>`" in sentence(folder)


def test_an_engine_with_a_draft_model_of_an_older_release(folder: Path) -> None:
    fields = json.loads((folder / MANIFEST_NAME).read_text())
    before = load_manifest(folder)
    (folder / MANIFEST_NAME).write_text(json.dumps(fields | {"draft_checkpoint": "", "draft_files": {}}))
    assert load_manifest(folder) == before
    files = {"config.json": {"size": 2, "sha256": ""}}
    (folder / MANIFEST_NAME).write_text(json.dumps(fields | {"draft_checkpoint": "draft", "draft_files": files}))
    assert "draft model" in sentence(folder)


@pytest.mark.usefixtures("engine_doubles")
def test_an_option_of_another_engine(folder: Path) -> None:
    change(folder, engine="started")
    message = sentence(folder, null_echo="true")
    assert message.startswith("OPENAI_BLS_ENGINE_NULL_ECHO is of another engine than started")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_such_setting", "1"),
        ("engine", "sglang"),
        ("null_step_delay_ms", "-1"),
        ("null_token_ids", "1,x"),
        ("null_token_ids", "100000"),
    ],
)
def test_bad_settings_are_refused(folder: Path, name: str, value: str) -> None:
    overrides = {"engine": "null"} | {name: value} if name != "engine" else {name: value}
    assert sentence(folder, **overrides)


def test_options_from_strings() -> None:
    wanted, options = parse_options({"engine": "null", "null_step_delay_ms": "5", "null_echo": "true"})
    assert wanted == "null"
    null = options["null"]
    assert isinstance(null, NullOptions)
    assert null.over(NullSettings()) == NullSettings(step_delay_ms=5, echo=True)
    kept = NullSettings(step_delay_ms=3, token_ids=(1, 2))
    assert NullOptions().over(kept) == kept


def test_null_engine_needs_nothing_on_disk(tmp_path: Path) -> None:
    engine = create_engine(tmp_path, Recorder(), {"engine": "null"})
    assert engine.info.engine == "null"
    engine.close()


def test_null_engine_of_a_manifest(folder: Path) -> None:
    change(folder, engine="null", record=NullSettings(token_ids=(7, 8)).fields())
    engine = create_engine(folder, Recorder())
    assert engine.info.engine == "null"
    assert engine.info.model_name == "tiny-qwen"
    engine.close()
    change(folder, record=NullSettings(token_ids=(700,)).fields())
    assert "outside the vocabulary" in sentence(folder)


@pytest.mark.parametrize(
    ("generation", "wanted"),
    [
        ({}, SamplingParams()),
        ({"do_sample": False}, SamplingParams()),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}, SamplingParams(0.6, 0.95, 20)),
        ({"temperature": None, "top_p": 0.8}, SamplingParams(top_p=0.8)),
        ({"repetition_penalty": 1.05}, SamplingParams(repetition_penalty=1.05)),
        ({"repetition_penalty": 0, "top_p": 0.8}, SamplingParams(top_p=0.8)),
    ],
)
def test_sampling_defaults(
    checkpoint: Path, tmp_path: Path, generation: dict[str, Any], wanted: SamplingParams
) -> None:
    shutil.copy(checkpoint / "config.json", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    facts = read_checkpoint(tmp_path)
    assert facts.sampling_defaults == wanted
    assert facts.eos_token_ids == (257,)


def test_the_null_engine_has_no_penalty_by_default(folder: Path) -> None:
    """It could not honour one."""
    path = folder / "checkpoint" / "generation_config.json"
    path.write_text(json.dumps({"repetition_penalty": 1.1, "top_p": 0.5}))
    change(folder, files={})
    engine = create_engine(folder, Recorder(), {"engine": "null"})
    engine.close()
    assert engine.info.sampling_defaults == SamplingParams(top_p=0.5)


def test_imports_stay_cheap() -> None:
    """The models that only talk to an engine must not load torch."""
    code = (
        "import sys, openai_bls.core.engine, openai_bls.engines.registry, openai_bls.builder.build;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
