"""Longest sequence of a checkpoint: held against the rotations that transformers computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_bls.core.checkpoint import context_length, read_checkpoint

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LONG = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [4.0] * 32}
LINEAR = {"rope_type": "linear", "factor": 8.0}
QWEN = {"model_type": "qwen2", "hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 32768),
        ({"rope_scaling": YARN}, 131072),
        ({"rope_scaling": {**YARN, "type": "yarn", "rope_type": "yarn"}}, 131072),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, 65536),
        ({"rope_parameters": YARN | {"rope_theta": 1e6}}, 131072),
        ({"rope_scaling": YARN, "max_position_embeddings": 40960}, 131072),
        ({"rope_scaling": YARN, "max_position_embeddings": 131072}, 131072),
        ({"rope_scaling": YARN | {"factor": None}}, 32768),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 65536),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 65536),
        ({"rope_scaling": LLAMA3, "max_position_embeddings": 65536}, 65536),
        ({"rope_scaling": LONG, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 32768),
    ],
)
def test_scaled(changes: dict[str, Any], longest: int) -> None:
    """At the end of the longest sequence the slowest rotation is where training had it, and no further."""
    from transformers import Qwen2Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    written = QWEN | changes
    assert context_length(written) == longest
    config = Qwen2Config.from_dict(written)
    rope = config.rope_parameters
    assert rope is not None
    slowest = rope["rope_theta"] ** -((64 - 2) / 64)
    trained = rope.get("original_max_position_embeddings", config.max_position_embeddings)
    kind = rope["rope_type"]
    if kind == "yarn" and rope["factor"] is None:
        return  # as DeepSeek writes it, with the ratio in max_position_embeddings
    if kind in ROPE_INIT_FUNCTIONS and kind not in ("longrope", "mrope"):
        scaled, _ = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=longest)
        assert float(scaled[-1]) * longest <= slowest * trained * (1 + 1e-4)


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        # Gemma 3, as published and as transformers 5 writes it: 131072 has the factor of its full attention.
        (
            {"text_config": {"model_type": "gemma3_text", "rope_scaling": LINEAR}, "max_position_embeddings": 131072},
            131072,
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": LINEAR}}
            | {"max_position_embeddings": 131072},
            131072,
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": YARN}}
            | {"max_position_embeddings": 32768},
            131072,
        ),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 2048}, 2048),
        ({"model_type": "mamba"}, None),
        ({"max_position_embeddings": True}, None),
    ],
)
def test_other_forms(config: dict[str, Any], longest: int | None) -> None:
    assert context_length(config) == longest


def test_what_the_class_has(tmp_path: Path) -> None:
    """As Gemma 3 is published: its text_config has neither vocabulary nor length."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "rope_scaling": LINEAR}
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_checkpoint(tmp_path)
    assert (facts.model_type, facts.vocab_size, facts.max_position_embeddings) == ("gemma3", 262208, 131072)
