"""Maker of tiny random checkpoints: any causal language model of transformers, from its config class's own fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.unit.core_support import VOCAB_SIZE, write_tokenizer

MAX_LENGTH = 128
"""Tokens of prompt and output."""
WINDOW = 8
"""Tokens of sliding windows and of chunks: shorter than the prompts."""
LAYERS = 4
"""Enough for every layer type of most patterns."""

# Fields by what they count, under all the names that configs have for it.
_VOCABULARY = ("vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input")
_LENGTH = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length")
_SIZES: tuple[tuple[int, str], ...] = (
    (64, "hidden_size n_embd d_model attention_hidden_size lru_width mamba_d_ssm dim_model_base"),
    (
        96,
        """intermediate_size intermediate_size_mlp dense_intermediate_size prefix_dense_intermediate_size n_inner
        d_inner ffn_dim ffn_hidden_size dff dim_ff decoder_ffn_dim encoder_ffn_dim""",
    ),
    (
        32,
        """moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size
        shared_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size
        q_lora_rank kv_lora_rank o_lora_rank laurel_rank adapter_rank router_hidden_size keep_window_size""",
    ),
    # With few heads of an indexer many of its scores are 0, and which keys it keeps is left to chance.
    (32, "index_n_heads indexer_n_heads"),
    (
        LAYERS,
        """num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers
        num_decoder_layers global_attn_every_n_layers sliding_window_pattern""",
    ),
    (
        4,
        """num_attention_heads n_head n_heads attention_heads num_heads swa_num_attention_heads
        linear_num_heads linear_num_value_heads mamba_n_heads mamba_num_heads n_mamba_heads
        decoder_attention_heads encoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads
        num_experts num_local_experts n_routed_experts moe_num_experts""",
    ),
    (
        2,
        """num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads
        num_experts_per_tok moe_topk moe_k top_k_experts n_group topk_group zero_expert_num
        n_groups mamba_n_groups mamba_ngroups o_groups num_dense_layers max_window_layers attn_layer_period""",
    ),
    (
        1,
        """first_k_dense_replace n_shared_experts num_shared_experts moe_num_shared_experts attn_layer_offset
        num_kv_shared_layers n_layers_per_attn_res_block decoder_sparse_step""",
    ),
    (
        16,
        """head_dim dim_head d_head kv_channels swa_head_dim v_head_dim qk_nope_head_dim rotary_dim index_head_dim
        linear_key_head_dim linear_value_head_dim linear_head_dim state_size mamba_d_state ssm_state_size
        hidden_size_per_layer_input gated_norm_rank query_pre_attn_scalar""",
    ),
    (8, "qk_rope_head_dim d_rel index_topk chunk_size mamba_chunk_size index_topk_blocks"),
    (
        WINDOW,
        """sliding_window sliding_window_size attention_window_size attention_chunk_size window_size local_attention
        rel_extent floor_scale block_size index_block_size""",
    ),
)
_FIELDS: dict[str, Any] = {name: size for size, names in _SIZES for name in names.split()} | {
    "use_sliding_window": True,
    "num_mtp_layers": 0,
    "num_nextn_predict_layers": 0,
}
# Parameters that stay as the class makes them: decays, time steps and mixing ratios.
_KEPT = re.compile(r"A_log|dt_bias|\.D$|dt_proj|time_|recurrent_param|lambda|beta|inv_freq|a_param|\bA\b")


def tiny_config(
    model_type: str,
    changes: Mapping[str, Any],
    *,
    vocab_size: int = VOCAB_SIZE,
    max_length: int = MAX_LENGTH,
    eos_token_id: int = 0,
) -> Any:
    """Config of `model_type` with small sizes in whatever fields its class has, then `changes`."""
    config_class = CONFIG_MAPPING[model_type]
    names = {field.name for field in dataclasses.fields(config_class)}
    fields = _FIELDS | dict.fromkeys(_VOCABULARY, vocab_size) | dict.fromkeys(_LENGTH, max_length)
    fields |= {"bos_token_id": 0, "eos_token_id": eos_token_id, "pad_token_id": 0}
    values = {name: value for name, value in fields.items() if name in names}
    if "kv_lora_rank" in names:  # latent attention makes keys and values for every head
        values["num_key_value_heads"] = values["num_attention_heads"]
    return config_class(**values | dict(changes))


def spread(model: torch.nn.Module, seed: int = 0) -> None:
    """Random weights that keep the size of what passes, so that outputs differ from token to token, and every position,
    mask and bias counts."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if _KEPT.search(name):
                continue
            if parameter.dim() < 2:
                parameter.add_(0.2 * noise(parameter))
            elif "embed" in name or "wte" in name or "wpe" in name:
                parameter.copy_(0.1 * noise(parameter))
            else:
                fan_in = parameter[0].numel() if parameter.dim() == 2 else max(parameter.shape[-2:])
                parameter.copy_(2.5 * fan_in**-0.5 * noise(parameter))


def make_checkpoint(folder: Path, model_type: str, changes: Mapping[str, Any], seed: int = 0) -> None:
    """A tiny random model with a tokenizer, as `save_pretrained` writes it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type, changes), dtype=torch.float32)
    spread(model, seed)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    write_tokenizer(folder)
