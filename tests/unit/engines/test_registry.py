"""Which engine is made, and the sentence where none can be."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
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
    record,
    write_manifest,
)
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.null.loading import NullOptions
from openai_bls.engines.null.record import NullSettings
from openai_bls.engines.registry import create_engine, names, parse_options
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from openai_bls_transformers.options import EngineOptions, with_settings
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


def test_an_engine_of_another_release(tmp_path: Path) -> None:
    manifest = Manifest(engine="sglang", model_name="m", max_model_len=9, max_batch_size=1, created=1)
    write_manifest(tmp_path, manifest)
    with pytest.raises(EngineLoadError, match=f"names the engine 'sglang'; known are {', '.join(names())}"):
        create_engine(tmp_path, Recorder())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"engine": "transformers"}', b"\xff\xfe"])
def test_unreadable_manifest(folder: Path, content: bytes) -> None:
    (folder / MANIFEST_NAME).write_bytes(content)
    assert "not readable" in sentence(folder)


def test_damaged_files(folder: Path) -> None:
    (folder / "checkpoint" / "model.safetensors").write_bytes(b"nonsense")
    assert "the checkpoint does not load" in sentence(folder)
    (folder / ".aside-old-checkpoint").mkdir()
    assert "cut short" in sentence(folder)


def test_what_the_machine_lacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "64 tokens, fewer than max_model_len 512" in sentence(folder, max_tokens_in_kv_cache="64")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no usable GPU" in sentence(folder, device="cuda:0")
    found: Callable[..., object] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torch" else found(name, *a))
    assert "needs the package torch" in sentence(folder)


def test_unknown_field_and_newer_format(folder: Path) -> None:
    fields = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / MANIFEST_NAME).write_text(json.dumps(fields | {"later_invention": 1}))
    assert "later_invention" in sentence(folder)
    fields |= {"later_invention": 1, "format_version": FORMAT_VERSION + 1}
    (folder / MANIFEST_NAME).write_text(json.dumps(fields))
    assert "newer than this release" in sentence(folder)


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


def test_missing_and_changed_files(folder: Path) -> None:
    checkpoint = folder / "checkpoint"
    change(folder, files={p.name: record(p) for p in checkpoint.iterdir() if p.is_file()})
    config = (checkpoint / "config.json").read_text()
    (checkpoint / "config.json").write_text(config + " ")
    assert "checkpoint/config.json has not the size" in sentence(folder)
    (checkpoint / "config.json").write_text(config)
    (checkpoint / "model.safetensors").unlink()
    assert "model.safetensors cannot be read (No such file" in sentence(folder)


def test_options_of_the_embedded_engine_mean_nothing_to_tensorrt_llm(folder: Path) -> None:
    change(folder, engine="tensorrt_llm", record=TensorRtLlmRecord(version="1.2.1").fields())
    message = sentence(folder, num_threads="2")
    assert message.startswith("OPENAI_BLS_ENGINE_NUM_THREADS is of another engine")


def test_settings_of_tensorrt_llm_are_refused_by_the_embedded_engine(folder: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"^enable_chunked_context in config\.pbtxt is for TensorRT-LLM engines"):
        create_engine(folder, Recorder(), {}, EngineSettings(enable_chunked_context=False))


def test_settings_that_both_know(folder: Path) -> None:
    settings = EngineSettings(
        max_tokens_in_paged_kv_cache=4096, enable_kv_cache_reuse=False, kv_events_endpoint="tcp://*:1"
    )
    options = with_settings(EngineOptions(), settings)
    assert (options.max_tokens_in_kv_cache, options.prefix_sharing) == (4096, False)
    assert options.kv_events_endpoint == "tcp://*:1"
    # The environment counts more.
    assert with_settings(EngineOptions(max_tokens_in_kv_cache=512), settings).max_tokens_in_kv_cache == 512
    assert with_settings(EngineOptions(), EngineSettings()) == EngineOptions()


def test_untested_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.99.0" if name == "transformers" else real(name))
    assert "transformers 5.99.0 is outside the range" in sentence(folder)
    create_engine(folder, Recorder(), {"allow_untested_versions": "true"}).close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_such_setting", "1"),
        ("engine", "vllm"),
        ("num_threads", "-1"),
        ("num_threads", "many"),
        ("device", "tpu"),
        ("null_step_delay_ms", "-1"),
        ("null_token_ids", "1,x"),
        ("null_token_ids", "100000"),
    ],
)
def test_bad_settings_are_refused(folder: Path, name: str, value: str) -> None:
    overrides = {"engine": "null"} | {name: value} if name != "engine" else {name: value}
    assert sentence(folder, **overrides)


def test_options_from_strings() -> None:
    wanted, options = parse_options({"engine": "null", "null_step_delay_ms": "5", "null_echo": "true", "device": "cpu"})
    assert (wanted, options["transformers"]) == ("null", EngineOptions(device="cpu"))
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


def test_max_model_len_is_the_lesser_of_two(folder: Path) -> None:
    change(folder, max_model_len=100)
    engine = create_engine(folder, Recorder(), {"max_batch_size": "3"})
    assert engine.info.max_model_len == 100
    assert engine.info.max_batch_size == 3
    engine.close()


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
