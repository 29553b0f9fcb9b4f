"""Random GGUF files, written by the gguf package: models of Llama and Qwen2 with a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.unit.core_support import CHAT_TEMPLATE, tiny_tokenizer

WIDTH, LAYERS, HEADS, KV_HEADS = 256, 2, 4, 2
MAX_MODEL_LEN = 256
# The width is the only one that transformers' reader knows.
EXPERTS, EXPERT_WIDTH = 4, 768


def write_gguf(
    path: Path,
    kind: str = "llama",
    weights: str = "F16",
    *,
    extra: str = "",
    fields: dict[str, str] | None = None,
    context: int = MAX_MODEL_LEN,
    merged: bool = False,
) -> Path:
    """A file of the architecture `kind` whose matrices have the type `weights`; its norms are F32.

    Args:
        path: of the file.
        kind: general.architecture.
        weights: name of a `gguf.GGMLQuantizationType`.
        extra: name of a further tensor.
        fields: further metadata.
        context: longest sequence.
        merged: with a merge and its token, without which llama.cpp reads no vocabulary.
    """
    random = np.random.default_rng(1)
    kind_of_weights = gguf.GGMLQuantizationType[weights]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(context)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    if kind == "qwen3moe":
        writer.add_key_length(WIDTH // HEADS)
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    size = _add_vocabulary(writer, merged=merged)
    for key, value in (fields or {}).items():
        writer.add_string(key, value)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.normal(0, 0.3, (rows, columns)).astype(np.float32)
        if not weights.endswith("_K"):
            writer.add_tensor(name, gguf.quantize(values, kind_of_weights), raw_dtype=kind_of_weights)
            return
        # The package reads these types and cannot write them: random blocks, with scales that give such values.
        elements, length = gguf.GGML_QUANT_SIZES[kind_of_weights]
        blocks = random.integers(0, 256, (rows * columns // elements, length), dtype=np.uint8)
        scale = np.float16(0.0005).tobytes()
        for at in (length - 2,) if weights == "Q6_K" else (0, 2):
            blocks[:, at : at + 2] = np.frombuffer(scale, np.uint8)
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind_of_weights)

    def vector(name: str, length: int) -> None:
        writer.add_tensor(name, random.normal(1, 0.1, length).astype(np.float16).astype(np.float32))

    matrix("token_embd.weight", size, WIDTH)
    vector("output_norm.weight", WIDTH)
    kv_width = WIDTH // HEADS * KV_HEADS
    for layer in range(LAYERS):
        for name, rows in (("attn_q", WIDTH), ("attn_k", kv_width), ("attn_v", kv_width), ("attn_output", WIDTH)):
            matrix(f"blk.{layer}.{name}.weight", rows, WIDTH)
            if kind == "qwen2" and name != "attn_output":
                vector(f"blk.{layer}.{name}.bias", rows)
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            if kind == "qwen3moe":
                shape = (WIDTH, EXPERT_WIDTH) if name == "ffn_down" else (EXPERT_WIDTH, WIDTH)
                experts = random.normal(0, 0.3, (EXPERTS, *shape)).astype(np.float16)
                writer.add_tensor(f"blk.{layer}.{name}_exps.weight", experts)
            else:
                matrix(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        if kind == "qwen3moe":
            matrix(f"blk.{layer}.ffn_gate_inp.weight", EXPERTS, WIDTH)
            for name in ("attn_q_norm", "attn_k_norm"):
                vector(f"blk.{layer}.{name}.weight", WIDTH // HEADS)
        for name in ("attn_norm", "ffn_norm"):
            vector(f"blk.{layer}.{name}.weight", WIDTH)
    if extra:
        vector(extra, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, *, merged: bool) -> int:
    """Write tiny_tokenizer; returns the number of its tokens."""
    tokenizer = tiny_tokenizer()
    tokens = [str(tokenizer.id_to_token(number)) for number in range(tokenizer.get_vocab_size())]
    if merged:
        tokens.append("qz")
        writer.add_token_merges(["q z"])
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 4 if "tool_call>" in token else 1 for token in tokens])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_eos_token_id(tokens.index("<|endoftext|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def transformers_model(path: Path, dtype: Any) -> Any:
    """What transformers itself makes of the file."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
