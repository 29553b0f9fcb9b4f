"""Table of architectures: what is special about the tiny model of each, and how the embedded engine serves it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

FULL, SLIDING, LINEAR, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"
LONG = {"original_max_position_embeddings": 48}
UNLIMITED = {"time_step_min": 1e-9}
"""transformers raises shorter time steps to this in a prompt, and not in the steps after it."""


class Case(NamedTuple):
    """One tiny model."""

    model_type: str
    changes: Mapping[str, Any] = MappingProxyType({})
    """Over what `tiny_config` chooses."""
    seed: int = 0
    """Of the weights: with some seeds a model says the same token over and over."""


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, **parameters}}


_PLAIN = """
afmoe apertus apertus1p5_text arcee aria_text axk1 axk2 biogpt bitnet codegen cohere cohere2 cohere2_moe cpmant cwm
deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffllama doge dots1 dots3_note_text ernie4_5 ernie4_5_moe exaone
exaone4 exaone_moe falcon_h1 falcon_mamba flex_olmo flint gemma gemma2 glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa
gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax inkling2_text internlm3 iquestcoder
jais2 jamba jetmoe lfm3 llama llama4_text mamba mimo_v2_flash minicpm3 minimax minimax_m2 ministral3 mistral mixtral
modernbert-decoder mpt nanochat nemotron olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon phi phi3 phimoe qwen2
qwen2_moe qwen3 qwen3_5_text qwen3_5_moe_text qwen3_moe qwen3_next recurrent_gemma rwkv sarvam_mla sarvam_moe seed_oss
smollm3 solar_open stablelm starcoder2 vaultgemma xglm youtu
"""
_SECOND_HALVES = "bart bigbird_pegasus blenderbot mbart pegasus prophetnet"
"""Model types of encoders with decoders, whose decoder stands alone."""
CASES: dict[str, Case] = {name: Case(name) for name in f"{_PLAIN} {_SECOND_HALVES}".split()} | {
    "bailing_hybrid": Case("bailing_hybrid", {"layer_group_size": 2}),
    "bamba": Case("bamba", {"attn_layer_indices": [1, 3], "mamba_n_heads": 8}, seed=1),
    "bloom": Case("bloom", seed=6),
    "ctrl": Case("ctrl", seed=1),
    "dbrx": Case(
        "dbrx",
        {
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
            "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    # One layer before the recurrent section, and one after it.
    "dory": Case("dory", {"n_input_layers": 1, "n_output_layers": 1}),
    "dory (last loop's cache)": Case(
        "dory", {"n_input_layers": 1, "n_output_layers": 1, "recurrent_kv_cache_mode": "last_loop"}
    ),
    "falcon (rotary)": Case("falcon"),
    "falcon (serial rotary)": Case(
        "falcon", {"parallel_attn": False, "multi_query": False, "num_kv_heads": None, "bias": True}
    ),
    "falcon (ALiBi)": Case("falcon", {"alibi": True}),
    "falcon (new decoder)": Case("falcon", {"new_decoder_architecture": True}),
    "gemma3_text": Case("gemma3_text", {"layer_types": [SLIDING, FULL] * 2}, seed=4),
    "gemma3n_text": Case("gemma3n_text", {"layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 2}),
    "gemma4_text": Case("gemma4_text", {"num_kv_shared_layers": 0, "layer_types": [SLIDING, SLIDING, FULL, FULL]}),
    "gemma4_text (shared KV)": Case("gemma4_text", {"num_kv_shared_layers": 2, "layer_types": [SLIDING, FULL] * 2}),
    "gemma4_text (MoE)": Case(
        "gemma4_text", {"num_kv_shared_layers": 0, "enable_moe_block": True, "layer_types": [SLIDING, FULL] * 2}
    ),
    "gemma4_unified_text": Case("gemma4_unified_text", {"num_kv_shared_layers": 0, "layer_types": [SLIDING, FULL] * 2}),
    "gpt_neo": Case("gpt_neo", {"attention_types": [[["global", "local"], 2]]}),
    "granitemoehybrid": Case("granitemoehybrid", {"layer_types": [LINEAR, FULL] * 2, "mamba_n_heads": 8}),
    # Each cycle multiplies what rounding does.
    "hrm_text": Case("hrm_text", {"H_cycles": 1, "L_cycles": 2}),
    "inkling2_loop_text": Case(
        "inkling2_loop_text", {"loop_layer_index_start": 1, "loop_layer_index_end": 3, "loop_num_passes": 2}
    ),
    "inkling_text": Case("inkling_text", {"layer_types": ["hybrid_sliding", "hybrid"] * 2}),
    "kimi_linear": Case("kimi_linear", {"layer_types": [LINEAR, FULL] * 2}),
    "kolibri1": Case("kolibri1", {"layer_types": [SLIDING, FULL] * 2}),
    "laguna": Case("laguna", {"layer_types": [SLIDING, FULL] * 2}),
    "lara_mini": Case("lara_mini", {"layer_types": [LINEAR, SLIDING, LINEAR, FULL]}),
    "lfm2": Case("lfm2", {"layer_types": [CONV, FULL] * 2}),
    "lfm2_moe": Case("lfm2_moe", {"layer_types": [CONV, FULL] * 2}),
    "llama (tied embeddings)": Case("llama", {"tie_word_embeddings": True}),
    "llama (llama3 rope)": Case(
        "llama", _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, **LONG)
    ),
    "llama (yarn)": Case("llama", _rope("yarn", factor=4.0, **LONG)),
    "llama (linear rope)": Case("llama", _rope("linear", factor=4.0)),
    "llama (dynamic rope)": Case("llama", {"max_position_embeddings": 64} | _rope("dynamic", factor=4.0)),
    "longcat_flash": Case("longcat_flash", {"head_dim": 8}),
    "mamba2": Case("mamba2", {"num_heads": 8}),
    "mellum": Case("mellum", {"layer_types": [SLIDING, FULL] * 2}),
    "minimax_m3_vl_text": Case(
        "minimax_m3_vl_text", {"layer_types": [FULL, "minimax_m3_sparse"] * 2, "index_n_heads": 4}
    ),
    "ministral": Case("ministral", {"layer_types": [SLIDING, FULL] * 2}),
    "mistral (no window)": Case("mistral", {"sliding_window": None}),
    "nemotron_h": Case("nemotron_h", UNLIMITED),
    "openai-gpt": Case("openai-gpt", seed=7),
    "opt (post-norm)": Case("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}, seed=1),
    "phi3 (longrope)": Case(
        "phi3",
        LONG | _rope("longrope", factor=4.0, short_factor=[1.0] * 8, long_factor=[1.0 + n for n in range(8)], **LONG),
    ),
    "phi3 (partial rotary)": Case("phi3", _rope("default", partial_rotary_factor=0.5)),
    "qwen3 (yarn)": Case("qwen3", _rope("yarn", factor=4.0, **LONG) | {"use_sliding_window": False}),
    "qwen3_moe (dense layers)": Case("qwen3_moe", {"mlp_only_layers": [1]}),
    "qwen4_exp_text": Case(
        "qwen4_exp_text",
        {"indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4},
    ),
    "stablelm (parallel)": Case("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    "starcoder2 (no window)": Case("starcoder2", {"sliding_window": None}),
    "xlstm": Case("xlstm", {"qk_dim_factor": 1.0}),
    "zamba": Case("zamba", {"layers_block_type": [LINEAR, "hybrid"] * 2, "attention_hidden_size": None}),
    "zamba2": Case("zamba2", {"layers_block_type": [LINEAR, "hybrid"] * 2, "n_mamba_heads": 8, **UNLIMITED}),
    "zaya": Case("zaya", {"num_experts_per_tok": 1}, seed=5),
}
