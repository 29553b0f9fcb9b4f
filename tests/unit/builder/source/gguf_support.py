"""Random GGUF files, written by the gguf package: a model of Llama with a byte-level tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from tests.unit.core_support import CHAT_TEMPLATE, tiny_tokenizer

WIDTH, LAYERS, HEADS, KV_HEADS = 256, 2, 4, 2
MAX_MODEL_LEN = 256


def write_gguf(
    path: Path,
    kind: str = "llama",
    weights: str = "F16",
    *,
    context: int = MAX_MODEL_LEN,
    merged: bool = False,
    sentencepiece: bool = False,
    pre: str = "qwen2",
    merges: Sequence[str] = (),
    sampling: Mapping[str, float | str] | None = None,
) -> Path:
    """A file of the architecture `kind` whose matrices have the type `weights`; its norms are F32.

    Args:
        path: of the file.
        kind: general.architecture.
        weights: name of a `gguf.GGMLQuantizationType`.
        context: longest sequence.
        merged: with a merge and its token, without which llama.cpp reads no vocabulary.
        sentencepiece: with a vocabulary of Llama 2's kind.
        pre: tokenizer.ggml.pre, which says how a text is split before it is merged.
        merges: further ones, each with its token.
        sampling: general.sampling.* → its value.
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
    for name, value in (sampling or {}).items():
        key = f"general.sampling.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_int32(key, value)
        else:
            writer.add_float32(key, value)
    size = (
        _add_sentencepiece(writer)
        if sentencepiece
        else _add_vocabulary(writer, pre, [*(["q z"] if merged else []), *merges])
    )

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.normal(0, 0.3, (rows, columns)).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(values, kind_of_weights), raw_dtype=kind_of_weights)

    def vector(name: str, length: int) -> None:
        writer.add_tensor(name, random.normal(1, 0.1, length).astype(np.float16).astype(np.float32))

    matrix("token_embd.weight", size, WIDTH)
    vector("output_norm.weight", WIDTH)
    kv_width = WIDTH // HEADS * KV_HEADS
    for layer in range(LAYERS):
        for name, rows in (("attn_q", WIDTH), ("attn_k", kv_width), ("attn_v", kv_width), ("attn_output", WIDTH)):
            matrix(f"blk.{layer}.{name}.weight", rows, WIDTH)
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            matrix(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        for name in ("attn_norm", "ffn_norm"):
            vector(f"blk.{layer}.{name}.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, pre: str, merges: Sequence[str]) -> int:
    """Write tiny_tokenizer with further merges; returns the number of its tokens."""
    tokenizer = tiny_tokenizer()
    tokens = [str(tokenizer.id_to_token(number)) for number in range(tokenizer.get_vocab_size())]
    if merges:
        tokens += [merge.replace(" ", "") for merge in merges]
        writer.add_token_merges(merges)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 4 if "tool_call>" in token else 1 for token in tokens])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_eos_token_id(tokens.index("<|endoftext|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def _add_sentencepiece(writer: gguf.GGUFWriter) -> int:
    """Write a vocabulary of bytes and a few pieces, which longer ones are merged from by their scores."""
    control = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁▁", "▁▁▁▁", "▁t", "he", "▁the", "▁a", "in", "▁", *"abcdefghijklmnopqrstuvwxyz,.!?"]
    tokens = [*control, *bytes_, *pieces]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, *[6] * len(bytes_), *[1] * len(pieces)])
    writer.add_token_scores([0.0] * (len(control) + len(bytes_)) + [-float(rank) for rank in range(len(pieces))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    return len(tokens)
