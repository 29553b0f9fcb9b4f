"""A repository whose engine offers nothing but the official contract, as TensorRT-LLM's C++ backend does."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from openai_bls.core.manifest import TensorRtLlmRecord, load_manifest, write_manifest
from openai_bls.core.settings import TensorRtLlmSettings
from openai_bls.triton_models.config_writer import render
from openai_bls.triton_models.cpp_backend import CPP_BACKEND, cpp_model, cpp_settings
from openai_bls.triton_models.tensors import OPENAI_BLS

STAND_IN = "stand_in"
_MODELS = ("openai_bls", "preprocessing", "postprocessing")


def make(repository: Path, target: Path, **openai_bls: str) -> Path:
    """A copy of `repository`, which holds an embedded engine, with the stand-in for the C++ backend around that engine.

    Its config.pbtxt is the one for the C++ backend in all but the backend's name; so the door is named by a setting.

    Args:
        repository: a model repository with an embedded engine.
        target: must not exist.
        **openai_bls: parameters of the model `openai_bls` beside `engine_door`.
    """
    for model in _MODELS:
        shutil.copytree(repository / model, target / model)
    version_dir = target / "tensorrt_llm" / "1"
    shutil.copytree(repository / "tensorrt_llm" / "1", version_dir / STAND_IN, ignore=shutil.ignore_patterns("*.py"))
    shutil.copy(Path(__file__).with_name("model.py"), version_dir)
    embedded = load_manifest(version_dir / STAND_IN)
    # Of the checkpoint openai_bls reads what lies beside an engine of TensorRT-LLM, which has the weights.
    shutil.copytree(
        version_dir / STAND_IN / embedded.checkpoint,
        version_dir / "checkpoint",
        ignore=shutil.ignore_patterns("*.safetensors"),
    )
    record = TensorRtLlmRecord("1.2.1", backend="cpp", max_input_len=embedded.max_model_len)
    manifest = msgspec.structs.replace(embedded, engine="tensorrt_llm", tensorrt_llm=record, files={})
    write_manifest(version_dir, manifest)
    settings = cpp_settings(manifest, TensorRtLlmSettings(guided_decoding_backend="xgrammar"), version_dir)
    config = render(cpp_model(settings, manifest.max_batch_size))
    name = f'backend: "{CPP_BACKEND}"'
    assert config.count(name) == 1
    (target / "tensorrt_llm" / "config.pbtxt").write_text(config.replace(name, 'backend: "python"'), encoding="utf-8")
    front = msgspec.structs.replace(
        OPENAI_BLS, parameters={**OPENAI_BLS.parameters, "engine_door": "grpc", **openai_bls}
    )
    (target / "openai_bls" / "config.pbtxt").write_text(render(front), encoding="utf-8")
    return target
