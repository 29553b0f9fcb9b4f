from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import EngineLoadError, LoraSettings, Manifest, write_manifest
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Model
from openai_bls_tensorrt_llm.legacy.cpp_backend import CppSettings, cpp_model
from openai_bls_tensorrt_llm.legacy.description import describe, signature
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord

CONFIG = {"architectures": ["X"], "model_type": "x", "vocab_size": 200, "eos_token_id": [2, 3]}
GUIDED: dict[str, Any] = {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": "/engine/x.json"}


def write_engine(
    folder: Path, *, model_name: str = "tiny", model: Model | None = None, lora: Any = (), **settings: Any
) -> Path:
    """What a build for the C++ backend leaves, without the engine itself."""
    version_dir = folder / "1"
    (version_dir / "checkpoint").mkdir(parents=True, exist_ok=True)
    (version_dir / "checkpoint" / "config.json").write_text(json.dumps(CONFIG))
    (version_dir / "checkpoint" / "generation_config.json").write_text('{"temperature": 0.5, "min_p": 0.25}')
    chosen = CppSettings(gpt_model_path="/engine", **settings)
    (folder / "config.pbtxt").write_text(render(model or cpp_model(chosen, 8, name=folder.name)))
    record = TensorRtLlmRecord("1.2.1", backend="cpp", max_input_len=1000)
    write_manifest(
        version_dir,
        Manifest("tensorrt_llm", model_name, 1000, 8, 5, lora=LoraSettings(dict(lora), 1, 8), record=record.fields()),
    )
    return folder


def test_an_engine(tmp_path: Path) -> None:
    found = describe(write_engine(tmp_path / "tensorrt_llm", **GUIDED))
    info = found.info
    assert (info.engine, info.model_name, info.version) == ("tensorrt_llm", "tiny", "tensorrt_llm 1.2.1")
    assert (info.max_model_len, info.max_batch_size, info.vocab_size) == (1000, 8, 200)
    assert info.eos_token_ids == (2, 3)
    assert set(info.supported) == {
        "temperature", "top_p", "top_k", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "logit_bias", "stop_token_ids", "stop_words", "bad_words", "min_tokens", "logprobs", "grammar",
    }  # fmt: skip
    assert info.max_logprobs == 0
    assert (info.grammar_backend, info.grammar_kinds) == ("xgrammar", ("json_schema", "regex", "ebnf"))
    assert info.grammar_dialect == "guided_decoding"
    # What every request would be refused for.
    assert info.sampling_defaults == SamplingParams(temperature=0.5)
    assert "stop" in found.inputs


def test_what_an_engine_does_not_support(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_engine(tmp_path / "tensorrt_llm", normalize_log_probs=True, lora={"poet": "lora/poet"})
    info = describe(folder).info
    # Normalized log-probabilities are not the model's.
    assert not {"grammar", "logprobs", "lora_name"} & set(info.supported)
    assert (info.grammar_backend, info.grammar_kinds, info.lora_names) == ("", (), ())
    assert "poet" in caplog.text


def test_the_highest_version_counts(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "tensorrt_llm", model_name="old")
    for version in ("2", "10"):
        (folder / "1").rename(folder / version)
        write_engine(folder, model_name=f"v{version}")
    assert describe(folder).info.model_name == "v2"


@pytest.mark.parametrize(("section", "name"), [("inputs", "seed"), ("inputs", "stop"), ("outputs", "sequence_length")])
def test_a_config_that_lacks_something(tmp_path: Path, section: str, name: str) -> None:
    model = cpp_model(CppSettings(gpt_model_path="/engine"), 8)
    left = tuple(tensor for tensor in getattr(model, section) if tensor.name != name)
    folder = write_engine(tmp_path / "tensorrt_llm", model=msgspec.structs.replace(model, **{section: left}))
    with pytest.raises(EngineLoadError, match=f" {section[:-1]} {name} "):
        describe(folder)


def test_what_is_not_there_or_not_readable(tmp_path: Path) -> None:
    folder = tmp_path / "tensorrt_llm"
    assert signature(folder) == (0, 0)
    with pytest.raises(EngineLoadError, match=f"{folder.name} .*version"):
        describe(folder)
    write_engine(folder)
    (folder / "config.pbtxt").write_text("input [")
    with pytest.raises(EngineLoadError, match=r"config\.pbtxt .*\("):
        describe(folder)
    (folder / "config.pbtxt").unlink()
    with pytest.raises(EngineLoadError, match=os.strerror(errno.ENOENT)):
        describe(folder)
    write_manifest(folder / "1", Manifest("null", "x", 1, 1, 0))
    with pytest.raises(EngineLoadError, match="--backend cpp"):
        describe(folder)
    (folder / "1" / "engine.json").unlink()
    assert signature(folder) == (0, 0)
    with pytest.raises(EngineLoadError, match="no engine"):
        describe(folder)


def test_every_build_has_a_signature_of_its_own(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "tensorrt_llm")
    first = signature(folder)
    assert signature(folder) == first
    write_engine(folder)
    assert signature(folder) != first
