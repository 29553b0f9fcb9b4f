from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls.triton_models.repository import engine_configs
from openai_bls.triton_models.repository.engine_configs import render_configs
from openai_bls.triton_models.tensors.config_writer import render
from openai_bls.triton_models.tensors.declaration import Queue
from openai_bls.triton_models.tensors.models import MODELS
from openai_bls_tensorrt_llm.legacy.cpp_backend import CppSettings, cpp_settings, engine_model, grammar_vocabulary
from openai_bls_tensorrt_llm.record import TensorRtLlmRecord
from tests.paths import DEMO

HERE = Path("/srv/model_repository/tensorrt_llm/1")


def manifest(backend: Any = "cpp", *, max_batch_size: int = 128) -> Manifest:
    record = TensorRtLlmRecord(version="1.2.1", backend=backend, max_beam_width=2)
    return Manifest("tensorrt_llm", "m", 4096, max_batch_size, 0, record=record.fields())


def parsed(text: str) -> model_config_pb2.ModelConfig:
    """As Triton itself reads it."""
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def parameters(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def test_the_embedded_engine_has_the_committed_files() -> None:
    """A build of it leaves a user's working tree clean."""
    rendered = render_configs(engine_configs.engine_model(EngineSettings()))
    assert rendered == {name: render(MODELS[name]) for name in ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")}


def test_our_own_model_gets_what_is_set_and_nothing_else() -> None:
    settings = EngineSettings(kv_cache_free_gpu_mem_fraction=0.85, max_attention_window_size="4096,32768")
    rendered = render_configs(engine_configs.engine_model(settings, suffix="small"))
    # A further engine has no ensembles.
    assert set(rendered) == {"tensorrt_llm_small"}
    config = parsed(rendered["tensorrt_llm_small"])
    assert config.backend == "python"
    assert parameters(config) == {
        "exclude_input_in_output": "true",
        "kv_cache_free_gpu_mem_fraction": "0.85",
        "max_attention_window_size": "4096,32768",
    }
    assert not config.HasField("dynamic_batching")
    assert msgspec.convert(parameters(config), EngineSettings, strict=False) == settings


def test_the_cpp_backend() -> None:
    asked = EngineSettings(guided_decoding_backend="xgrammar", enable_kv_cache_reuse=False)
    settings = cpp_settings(manifest(), asked, HERE, {"gpu_device_ids": "1;2", "cuda_graph_mode": "true"})
    config = parsed(render_configs(engine_model(manifest(), settings, Queue(1000, 64)))["tensorrt_llm"])
    assert config.backend == "tensorrtllm"
    assert config.instance_group[0].count == 2
    assert config.max_batch_size == 128
    assert config.model_transaction_policy.decoupled
    assert config.dynamic_batching.max_queue_delay_microseconds == 1000
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 64
    assert parameters(config) == {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "exclude_input_in_output": "true",
        "enable_kv_cache_reuse": "false",
        "guided_decoding_backend": "xgrammar",
        "max_beam_width": "2",
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": f"{HERE}/engine",
        "normalize_log_probs": "false",
        "gpu_device_ids": "1;2",
        "cuda_graph_mode": "true",
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
        "tokenizer_dir": "",
        "xgrammar_tokenizer_info_path": f"{HERE}/engine/xgrammar_tokenizer_info.json",
    }


def test_the_cpp_backend_does_not_load_without_three_parameters() -> None:
    """It reads them without a default (getGuidedDecodingConfigFromParams)."""
    plain = cpp_settings(manifest(), EngineSettings(), HERE)
    rendered = parameters(parsed(render_configs(engine_model(manifest(), plain))["tensorrt_llm"]))
    for name in ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"):
        assert rendered[name] == ""


def test_only_official_tensors_for_the_cpp_backend() -> None:
    model = engine_model(manifest(), cpp_settings(manifest(), EngineSettings(), HERE))
    names = {tensor.name for tensor in (*model.inputs, *model.outputs)}
    assert not names & {"decode_context", "decode_final", "random_seed", "min_length"}
    assert {"input_ids", "seed", "min_tokens", "lora_task_id", "lora_weights", "lora_config", "stop"} <= names
    assert {tensor.name for tensor in model.inputs if not tensor.optional} == {"input_lengths", "request_output_len"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_cache_fraction": "0.5"}, "'kv_cache_fraction' .*exclude_input_in_output, "),
        ({"cuda_graph_mode": "perhaps"}, "cuda_graph_mode"),
        ({"gpu_device_ids": "0,;1"}, "gpu_device_ids"),
        ({"batch_scheduler_policy": "static"}, "'static'"),
    ],
)
def test_refused_parameters(given: dict[str, str], message: str) -> None:
    with pytest.raises(EngineLoadError, match=message):
        cpp_settings(manifest(), EngineSettings(), HERE, given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (CppSettings(), r"\(gpt_model_path\)"),
        (CppSettings(gpt_model_path="engine"), "gpt_model_path engine "),
        (CppSettings(gpt_model_path="/e", gpu_device_ids="0;1,2"), "gpu_device_ids 0;1,2: .* 1 GPU .* 1,2 are 2"),
        (CppSettings(gpt_model_path="/e", guided_decoding_backend="llguidance"), "C.. backend .*xgrammar "),
        (CppSettings(gpt_model_path="/e", guided_decoding_backend="xgrammar"), "xgrammar_tokenizer_info_path"),
    ],
)
def test_settings_that_do_not_suit_the_cpp_backend(settings: CppSettings, message: str) -> None:
    with pytest.raises(EngineLoadError, match=message):
        engine_model(manifest(), settings)


def test_the_grammar_vocabulary_is_the_tokenizers(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    found = json.loads(grammar_vocabulary(DEMO, (1, 2)))
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    assert found["stop_token_ids"] == [1, 2]
    assert len(found["encoded_vocab"]) == tokenizer.get_vocab_size(with_added_tokens=True)
    assert [tokenizer.token_to_id(piece) for piece in found["encoded_vocab"]] == list(
        range(len(found["encoded_vocab"]))
    )
    assert Tokenizer.from_str(found["tokenizer_str"]).get_vocab() == tokenizer.get_vocab()
    with pytest.raises(EngineLoadError, match=r"tokenizer\.json"):
        grammar_vocabulary(tmp_path, ())


def test_an_id_without_a_token_moves_nothing(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": {"a": 0, "c": 2}}, "added_tokens": [{"content": "<e>", "id": 4}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = json.loads(grammar_vocabulary(tmp_path, (4,)))
    assert found["encoded_vocab"] == ["a", "<unused 1>", "c", "<unused 3>", "<e>"]
    scored = {"model": {"vocab": [["x", -1.0], ["y", -2.0]]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(scored))
    assert json.loads(grammar_vocabulary(tmp_path, ()))["encoded_vocab"] == ["x", "y"]
