"""Renders of a repository with an engine of TensorRT-LLM: of the C++ backend, and of our own model.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core import config_pbtxt
from openai_bls.core.manifest import Manifest, write_manifest
from openai_bls.core.settings import EngineSettings, SettingsError
from openai_bls.triton_models.repository.engine_configs import render_configs
from openai_bls.triton_models.repository.engines import backends
from openai_bls.triton_models.repository.folders import ModelFolders
from openai_bls.triton_models.repository.render_configs import configure
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Queue
from openai_bls.triton_models.tensors.models import MODELS
from openai_bls_tensorrt_llm.legacy.cpp_backend import CppSettings, cpp_model, cpp_settings, engine_model
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.unit.triton_models.repository.rendering import check_setting, config

NO_GRAMMARS = {"xgrammar_tokenizer_info_path": ""}


def test_tensorrt_llm_bls_is_an_ensemble_around_the_cpp_backend(repository: Path) -> None:
    """Its own choices end there, and a later render keeps it so."""
    configure(repository, ["tensorrt_llm_bls.instances=2"])
    settings = CppSettings(gpt_model_path="/srv/engine")
    config(repository, "tensorrt_llm").write_text(render(cpp_model(settings, 32)))
    model = config(repository, "tensorrt_llm_bls")
    assert model in configure(repository)
    assert 'platform: "ensemble"' in model.read_text()
    assert "max_batch_size: 32" in model.read_text()
    assert configure(repository) == []
    with pytest.raises(SettingsError, match=r"^tensorrt_llm_bls: .* tensorrt_llm\.decoupled_mode"):
        configure(repository, ["tensorrt_llm_bls.decoupled_mode=true"])


def built(backend: Any = "cpp") -> Manifest:
    return Manifest("tensorrt_llm", "m", 64, 16, 0, record=TensorRtLlmRecord(version="1.2.1", backend=backend).fields())


def test_a_cpp_engine_stays_one(repository: Path) -> None:
    settings = cpp_settings(built(), EngineSettings(), Path("/srv/tensorrt_llm/1"))
    for name, text in render_configs(engine_model(built(), settings, Queue(100))).items():
        config(repository, name).write_text(text)
    assert configure(repository) == []
    assert configure(repository, ["tensorrt_llm.kv_cache_free_gpu_mem_fraction=0.5"]) == [
        config(repository, "tensorrt_llm")
    ]
    text = config(repository, "tensorrt_llm").read_text()
    assert 'key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.5" }' in text
    assert 'backend: "tensorrtllm"' in text
    assert configure(repository) == []
    configure(repository, ["tensorrt_llm.gpu_device_ids=0;1;2"])
    assert "instance_group [ { count: 3 kind" in config(repository, "tensorrt_llm").read_text()
    with pytest.raises(SettingsError, match=r"instances is 2, .*gpu_device_ids \(3\)"):
        configure(repository, ["tensorrt_llm.instances=2"])
    # The ensembles follow a smaller engine.
    configure(repository, ["tensorrt_llm.max_batch_size=4"])
    assert "max_batch_size: 4\n" in config(repository, "ensemble").read_text()


def on_cpp(repository: Path, settings: EngineSettings | None = None) -> dict[str, str]:
    """Renders the repository as a build does; the paths in the engine's configuration."""
    folder = repository / "tensorrt_llm" / "1"
    own = cpp_settings(built(), settings or EngineSettings(), folder)
    for name, text in render_configs(engine_model(built(), own, Queue(100))).items():
        config(repository, name).write_text(text)
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "xgrammar_tokenizer_info.json").touch()
    return paths(repository)


def paths(repository: Path) -> dict[str, str]:
    given = config_pbtxt.parameters(config_pbtxt.read(config(repository, "tensorrt_llm")))
    return {name: value for name, value in given.items() if name.endswith("_path") and name != "executor_worker_path"}


def test_a_copied_repository_gets_its_own_paths(repository: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for model in MODELS:
        (repository / model).rename(old / model)
    before = on_cpp(old, EngineSettings(guided_decoding_backend="xgrammar"))
    shutil.copytree(old, new)
    assert configure(new) == [config(new, "tensorrt_llm")]
    engine = new / "tensorrt_llm" / "1" / "engine"
    assert paths(new) == {
        "gpt_model_path": str(engine),
        "xgrammar_tokenizer_info_path": str(engine / "xgrammar_tokenizer_info.json"),
    }
    assert configure(new) == []
    # A link to the same place is the same place.
    (tmp_path / "link").symlink_to(old)
    assert configure(tmp_path / "link") == []
    assert paths(old) == before


def test_the_path_of_an_engine_elsewhere_stays(repository: Path) -> None:
    on_cpp(repository)
    with pytest.raises(SettingsError, match=f"gpt_model_path is /srv/large, .* {repository}"):
        configure(repository, ["tensorrt_llm.gpt_model_path=/srv/large"])
    assert paths(repository) == {"gpt_model_path": str(repository / "tensorrt_llm/1/engine"), **NO_GRAMMARS}
    shutil.rmtree(repository / "tensorrt_llm" / "1" / "engine")
    configure(repository, ["tensorrt_llm.gpt_model_path=/srv/large"])
    assert configure(repository) == []
    assert paths(repository) == {"gpt_model_path": "/srv/large", **NO_GRAMMARS}


def test_limits_of_the_cpp_backend(repository: Path) -> None:
    """Several instances are for it alone; an ensemble has no larger batches than its engine."""
    on_cpp(repository)
    configure(repository, ["tensorrt_llm.instances=2", "tensorrt_llm.gpu_device_ids=0;1"])
    assert "count: 2" in config(repository, "tensorrt_llm").read_text()
    with pytest.raises(SettingsError, match=r"decoupled_mode is false, .*openai_bls"):
        configure(repository, ["tensorrt_llm.decoupled_mode=false"])
    with pytest.raises(SettingsError, match=r"ensemble: max_batch_size is 100, .*tensorrt_llm is 16"):
        configure(repository, ["ensemble.max_batch_size=100"])
    configure(repository, ["ensemble.max_batch_size=8"])
    assert "max_batch_size: 8\n" in config(repository, "ensemble").read_text()


def test_openai_bls_reaches_the_cpp_backend_over_grpc(repository: Path) -> None:
    config(repository, "tensorrt_llm").write_text(render(cpp_model(CppSettings(gpt_model_path="/engine"), 8)))
    own = repository / "openai_bls"
    args = {"model_repository": str(own), "model_name": "openai_bls", "model_version": "1"}
    assert [backend.transport for backend in backends(ModelFolders(args, os.getpid()), own, "1")] == ["grpc"]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("kv_cache_free_gpu_mem_fraction=0.5", ""),
        ("guided_decoding_backend=llguidance", "llguidance is not for TensorRT engines"),
    ],
)
def test_settings_of_our_own_model(repository: Path, change: str, refusal: str) -> None:
    write_manifest(repository / "tensorrt_llm" / "1", built("python"))
    check_setting(repository, change, refusal)
