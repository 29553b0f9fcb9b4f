"""Table of architectures: what is special about the tiny model of each, and how the embedded engine serves it."""

from __future__ import annotations

from typing import Any, NamedTuple

FULL, SLIDING, LINEAR, CHUNKED = "full_attention", "sliding_attention", "linear_attention", "chunked_attention"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}


class Case(NamedTuple):
    """One tiny model."""

    model_type: str
    changes: dict[str, Any] = {}
    """Over what `tiny_config` chooses."""
    seed: int = 0


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4, **parameters}}


_PLAIN = """
afmoe apertus arcee aria_text axk1 biogpt bitnet bloom codegen cohere cohere2 cohere2_moe cpmant ctrl cwm deepseek_v2 deepseek_v3
deepseek_v32 deepseek_v4 diffllama doge dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon_h1 falcon_mamba
flex_olmo flint gemma gemma2 gemma3n_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_bigcode gpt_neox
gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoeshared helium hrm_text
hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax inkling_text inkling2_text internlm3 iquestcoder jais2 jamba
jetmoe kolibri1 lfm3 llama llama4_text longcat_flash mamba minicpm3 minimax minimax_m2 minimax_m3_vl_text
ministral3 mistral mixtral mpt nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt persimmon
phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_5_moe_text qwen3_moe qwen3_next recurrent_gemma rwkv seed_oss
smollm3 solar_open stablelm starcoder2 vaultgemma xglm youtu
"""
CASES: dict[str, Case] = {name: Case(name) for name in _PLAIN.split()} | {
    "axk2": Case("axk2"),
    "bailing_hybrid": Case("bailing_hybrid", {"layer_group_size": 2}),
    "bamba": Case("bamba", {"attn_layer_indices": [1, 3], "mamba_n_heads": 8}),
    "dbrx": Case(
        "dbrx",
        {
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "dots3_note_text": Case("dots3_note_text"),
    "falcon (rotary)": Case("falcon"),
    "falcon (rotary, serial)": Case("falcon", {"parallel_attn": False, "multi_query": False, "bias": True}),
    "falcon (ALiBi)": Case("falcon", {"alibi": True}),
    "falcon (new decoder)": Case("falcon", {"new_decoder_architecture": True}),
    "gemma3_text": Case("gemma3_text", {"layer_types": [SLIDING, FULL, SLIDING, FULL]}),
    "gemma4_text": Case("gemma4_text", {"num_kv_shared_layers": 0, "layer_types": [SLIDING, SLIDING, FULL, FULL]}),
    "gemma4_text (shared KV)": Case(
        "gemma4_text", {"num_kv_shared_layers": 2, "layer_types": [SLIDING, FULL, SLIDING, FULL]}
    ),
    "gemma4_text (MoE)": Case(
        "gemma4_text",
        {"num_kv_shared_layers": 0, "enable_moe_block": True, "layer_types": [SLIDING, SLIDING, FULL, FULL]},
    ),
    "gemma4_unified_text": Case(
        "gemma4_unified_text", {"num_kv_shared_layers": 0, "layer_types": [SLIDING, SLIDING, FULL, FULL]}
    ),
    "gpt_neo": Case("gpt_neo", {"attention_types": [[["global", "local"], 2]]}),
    "granitemoehybrid": Case("granitemoehybrid", {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8}),
    "kimi_linear": Case("kimi_linear", {"layer_types": [LINEAR, FULL, LINEAR, FULL]}),
    "laguna": Case("laguna", {"layer_types": [SLIDING, FULL, SLIDING, FULL]}),
    "lfm2": Case("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
    "lfm2_moe": Case("lfm2_moe", {"layer_types": ["conv", "full_attention"] * 2}),
    "llama (tied)": Case("llama", {"tie_word_embeddings": True}),
    "llama (llama3 rope)": Case(
        "llama",
        _rope(
            rope_type="llama3",
            factor=4.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama (yarn)": Case("llama", {"rope_parameters": YARN}),
    "llama (linear rope)": Case("llama", _rope(rope_type="linear", factor=4.0)),
    "llama (dynamic rope)": Case("llama", {"max_position_embeddings": 32} | _rope(rope_type="dynamic", factor=4.0)),
    "mamba2": Case("mamba2", {"num_heads": 8}),
    "mellum": Case("mellum", {"layer_types": [SLIDING, FULL, SLIDING, FULL]}),
    "mimo_v2_flash": Case("mimo_v2_flash"),
    "ministral": Case("ministral", {"layer_types": [SLIDING, FULL, SLIDING, FULL]}),
    "mistral (no window)": Case("mistral", {"sliding_window": None}),
    "modernbert-decoder": Case("modernbert-decoder"),
    "opt (post-norm)": Case("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "phi (partial rotary)": Case("phi", _rope(rope_type="default", partial_rotary_factor=0.5)),
    "phi3 (longrope)": Case(
        "phi3",
        {"original_max_position_embeddings": 32}
        | _rope(
            rope_type="longrope",
            short_factor=[1.0] * 8,
            long_factor=[1.0 + n for n in range(8)],
            factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "qwen3 (yarn)": Case("qwen3", {"rope_parameters": YARN, "use_sliding_window": False}),
    "qwen3_moe (sliding)": Case("qwen3_moe", {"mlp_only_layers": [1]}),
    "stablelm (parallel)": Case("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    "starcoder2 (no window)": Case("starcoder2", {"sliding_window": None}),
    "xlstm": Case("xlstm"),
    "zamba": Case("zamba"),
    "zamba2": Case("zamba2", {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "n_mamba_heads": 8}),
    "zaya": Case("zaya", {"num_experts_per_tok": 1}),
    "qwen4_exp_text": Case(
        "qwen4_exp_text",
        {"indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4},
    ),
}
