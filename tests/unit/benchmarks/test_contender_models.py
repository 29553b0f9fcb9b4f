from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2

from benchmarks.clients.target import http_target, triton_body
from benchmarks.contenders.servers import CONTENDERS, MAX_MODEL_LEN, MODELS, null_repository
from openai_bls.core.manifest import load_manifest
from openai_bls.engines.null.record import NullSettings
from openai_bls.triton_models.tensors import models

# Comes with tritonclient, but without types.
text_format = pytest.importorskip("google.protobuf.text_format")

NAMES = sorted(entry.name for entry in MODELS.iterdir())


def _config(name: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse((MODELS / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


@pytest.mark.parametrize("name", NAMES)
def test_configs_parse(name: str) -> None:
    config = _config(name)
    assert config.name == name
    assert any(name in one.models for one in CONTENDERS.values())
    assert config.model_transaction_policy.decoupled == (name == "bare")
    for step in config.ensemble_scheduling.step:
        inner = _config(step.model_name)
        assert set(step.input_map) == {tensor.name for tensor in inner.input}
        assert set(step.output_map) == {tensor.name for tensor in inner.output}


def test_the_inputs_that_are_sent_are_the_models() -> None:
    for name in ("bare", "ensemble"):
        one = CONTENDERS[name]
        target = http_target("generate_stream", "http://h:1", triton_model=one.models[0], dialect=one.dialect)
        body = json.loads(triton_body(target, 64, 128, random.Random(0)))
        assert set(body) == {tensor.name for tensor in _config(one.models[0]).input}
        assert [tensor.name for tensor in _config(one.models[0]).output] == [target.output]


def test_the_null_repository(tmp_path: Path, tokenizer_dir: Path) -> None:
    source = tmp_path / "source"
    for model in models.MODELS:
        (source / model / "1" / "checkpoint").mkdir(parents=True)
    (source / "tensorrt_llm" / "1" / "engine.json").write_text("{}")
    null_repository(source, tmp_path / "copy", tokenizer_dir / "tokenizer.json", [5, 6])
    manifest = load_manifest(tmp_path / "copy" / "tensorrt_llm" / "1")
    null = NullSettings.of(manifest)
    assert (manifest.engine, manifest.max_model_len, null.token_ids) == ("null", MAX_MODEL_LEN, (5, 6))
    assert null.vocab_size > 6
    assert not (tmp_path / "copy" / "tensorrt_llm" / "1" / "checkpoint").exists()
