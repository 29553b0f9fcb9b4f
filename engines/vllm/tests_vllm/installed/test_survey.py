"""Answers of an interpreter with the real vLLM; engines/vllm/tests_vllm/engine/survey has those of made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_bls_vllm.survey import interpreter
from tests.paths import DEMO

pytestmark = pytest.mark.timeout(1800)


def test_a_model_that_it_has(warm_python: str) -> None:
    """In the data type of the engine's load on a CPU."""
    found = interpreter.ask(warm_python, {"model": str(DEMO), "skip_tokenizer_init": True, "quantization": None})
    assert (found.refusal, found.architecture, found.max_model_len) == ("", "Qwen2ForCausalLM", 2048)
    assert found.dtype == "float32" or found.devices
    assert {"speculative_config", "tensor_parallel_size", "max_num_batched_tokens"} <= set(found.fields)


def test_a_model_that_it_does_not_know(warm_python: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such", "architectures": ["NoSuchForCausalLM"]}')
    refused = interpreter.ask(warm_python, {"model": str(tmp_path), "skip_tokenizer_init": True}).refusal
    assert "no_such" in refused
    assert "\n" not in refused
