"""Loads of the embedded engine: its options and settings, and the sentence where it does not load."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from openai_bls.core.manifest import EngineLoadError, record
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.registry import create_engine, parse_options
from openai_bls_transformers.options import EngineOptions, with_settings
from tests.engine_contract.support import Recorder, change
from tests.unit.engines.test_registry import sentence


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


def test_missing_and_changed_files(folder: Path) -> None:
    checkpoint = folder / "checkpoint"
    change(folder, files={p.name: record(p) for p in checkpoint.iterdir() if p.is_file()})
    config = (checkpoint / "config.json").read_text()
    (checkpoint / "config.json").write_text(config + " ")
    assert "checkpoint/config.json " in sentence(folder)
    (checkpoint / "config.json").write_text(config)
    (checkpoint / "model.safetensors").unlink()
    assert "model.safetensors cannot be read (No such file" in sentence(folder)


def test_settings_of_tensorrt_llm_are_refused(folder: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"^enable_chunked_context in config\.pbtxt .*TensorRT-LLM"):
        create_engine(folder, Recorder(), {}, EngineSettings(enable_chunked_context=False))


def test_settings_that_tensorrt_llm_has_too(folder: Path) -> None:
    settings = EngineSettings(
        max_tokens_in_paged_kv_cache=4096, enable_kv_cache_reuse=False, kv_events_endpoint="tcp://*:1"
    )
    options = with_settings(EngineOptions(), settings)
    assert (options.max_tokens_in_kv_cache, options.prefix_sharing) == (4096, False)
    assert options.kv_events_endpoint == "tcp://*:1"
    # The environment counts more.
    assert with_settings(EngineOptions(max_tokens_in_kv_cache=512), settings).max_tokens_in_kv_cache == 512
    assert with_settings(EngineOptions(), EngineSettings()) == EngineOptions()


def test_convolutions_are_not_rounded_to_tf32(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    create_engine(folder, Recorder(), {}).close()
    assert not torch.backends.cudnn.allow_tf32


def test_untested_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.99.0" if name == "transformers" else real(name))
    assert "transformers 5.99.0 " in sentence(folder)
    create_engine(folder, Recorder(), {"allow_untested_versions": "true"}).close()


def test_max_model_len_is_the_lesser_of_two(folder: Path) -> None:
    change(folder, max_model_len=100)
    engine = create_engine(folder, Recorder(), {"max_batch_size": "3"})
    assert engine.info.max_model_len == 100
    assert engine.info.max_batch_size == 3
    engine.close()


@pytest.mark.parametrize(("name", "value"), [("num_threads", "-1"), ("num_threads", "many"), ("device", "tpu")])
def test_bad_options(folder: Path, name: str, value: str) -> None:
    assert name in sentence(folder, **{name: value})


def test_options_from_strings() -> None:
    _, options = parse_options({"device": "cpu", "num_threads": "2"})
    assert options["transformers"] == EngineOptions(device="cpu", num_threads=2)
