"""The shape of a language model, read from a Hugging Face config.json: how many weights it has, and of which kind.

Nothing is loaded for it: neither transformers nor a checkpoint's own Python code. The counts are exact, so a model type
that is not listed here is refused rather than guessed at.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.tensorrt_llm.hf_config import Fields, quantization_of, read_config, stretched
from openai_bls.core.manifest import EngineLoadError


class Parameters(msgspec.Struct, frozen=True):
    """Numbers of weights, by what quantisation does with them."""

    embedding: int
    """The table of input embeddings; with tied embeddings it is the output projection too."""
    lm_head: int
    """The output projection; 0 with tied embeddings."""
    linear: int
    """Matrices of attention and MLP, in all layers: what a quantisation makes smaller."""
    router: int
    """Of experts, and gates of shared experts: never quantised."""
    other: int
    """Biases and norms."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.lm_head + self.linear + self.router + self.other


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer with RMS norms."""

    architecture: str
    """First of config.json's `architectures`, e.g. `Qwen2ForCausalLM`."""
    model_type: str
    layers: int
    hidden_size: int
    intermediate_size: int
    """Of a layer's ordinary MLP; of one half of it where gate and up projection are told as one."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding table."""
    max_position_embeddings: int | None
    """The longest sequence the model was made for, in tokens, with the scaling that its config.json asks for."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    """Of attention's output projection."""
    qk_norm: bool = False
    """Norms of query and key, of `head_dim` weights each."""
    mlp_gated: bool = True
    mlp_bias: bool = False
    norms_per_layer: int = 2
    experts: int = 0
    """0 is a dense model."""
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    """Of one expert."""
    shared_intermediate_size: int = 0
    """Of the expert that every token goes through (Qwen2-MoE); 0 is none."""
    dense_layers: int = 0
    """Layers of a model with experts that have an ordinary MLP instead."""
    position: str = "rope"
    """`rope` or `alibi`."""
    sliding_window: int | None = None
    """Tokens that some of the layers look back at most; None is all of them."""
    dtype: str = ""
    """Of the weights on disk, as config.json tells: `bfloat16`, `float16`, `float32`, or empty."""
    quantization: str = ""
    """What the checkpoint is quantised with: a name of `contract.Quant`, else config.json's own; empty is nothing."""

    @property
    def parameters(self) -> Parameters:
        """How many weights there are, exactly."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden_size * (query + 2 * key_value) + query * self.hidden_size
        sparse_layers = self.layers - self.dense_layers if self.experts else 0
        mlp = (self.layers - sparse_layers) * self._mlp(self.intermediate_size)
        mlp += sparse_layers * (
            self.experts * self._mlp(self.moe_intermediate_size) + self._mlp(self.shared_intermediate_size)
        )
        router = sparse_layers * self.hidden_size * (self.experts + (1 if self.shared_intermediate_size else 0))
        other = self.norms_per_layer * self.hidden_size
        other += 2 * self.head_dim if self.qk_norm else 0
        other += query + 2 * key_value if self.qkv_bias else 0
        other += self.hidden_size if self.output_bias else 0
        if self.mlp_bias:
            other += (2 if self.mlp_gated else 1) * self.intermediate_size + self.hidden_size
        table = self.vocab_size * self.hidden_size
        return Parameters(
            embedding=table,
            lm_head=0 if self.tied_embeddings else table,
            linear=self.layers * attention + mlp,
            router=router,
            other=self.layers * other + self.hidden_size,
        )

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """Bytes of keys and values that one token leaves in the cache, over all layers."""
        return math.ceil(2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element)

    def _mlp(self, size: int) -> int:
        return (3 if self.mlp_gated else 2) * self.hidden_size * size


class _Dialect(msgspec.Struct, frozen=True):
    """What a model type's code decides, which its config.json therefore does not say."""

    tied: bool = False
    """Where the file does not say."""
    qkv_bias: bool | None = False
    """None: as the file's `attention_bias` says."""
    output_bias: bool | None = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    head_dim: int | None = None
    """Where the file does not say; None is the hidden size shared out to the heads."""


_BY_FILE = _Dialect(qkv_bias=None, output_bias=None)

# By config.json's model_type. Sources: the modelling code of transformers, and for baichuan, chatglm and qwen the code
# that comes with the checkpoints.
_DIALECTS = {
    "llama": _BY_FILE,
    "mistral": _Dialect(),
    "mixtral": _Dialect(),
    "qwen": _Dialect(qkv_bias=True),
    "qwen2": _Dialect(qkv_bias=True),
    "qwen2_moe": _Dialect(qkv_bias=True),
    "qwen3": _Dialect(qkv_bias=None, output_bias=None, qk_norm=True, head_dim=128),
    "qwen3_moe": _Dialect(qkv_bias=None, output_bias=None, qk_norm=True),
    "baichuan": _Dialect(),
    "chatglm": _Dialect(),
    "glm": _Dialect(qkv_bias=None, head_dim=128),
    "glm4": _Dialect(qkv_bias=None, head_dim=128, norms_per_layer=4),
    "phi3": _Dialect(),
    "gemma": _Dialect(tied=True, qkv_bias=None, output_bias=None, head_dim=256),
    "gemma2": _Dialect(tied=True, qkv_bias=None, output_bias=None, head_dim=256, norms_per_layer=4),
    "gemma3_text": _Dialect(tied=True, qkv_bias=None, output_bias=None, head_dim=256, norms_per_layer=4, qk_norm=True),
}

_BAICHUAN_7B_HEADS = 32


def read_shape(folder: Path) -> ModelShape:
    """The shape of the checkpoint in `folder`.

    Raises:
        EngineLoadError: there is no readable config.json, or it is not understood; see `shape_of`.
    """
    return shape_of(read_config(folder))


def shape_of(config: dict[str, Any]) -> ModelShape:
    """The shape that the contents of a config.json tell.

    Raises:
        EngineLoadError: the model type is not one of those whose weights can be counted here, or a field that its
            count needs is missing or not a number; the message names it.
    """
    model_type = str(config.get("model_type") or "")
    dialect = _DIALECTS.get(model_type)
    if dialect is None:
        raise EngineLoadError(
            f"config.json has model_type {model_type!r}, whose size is not known here: "
            f"supported are {', '.join(sorted(_DIALECTS))}"
        )
    fields = Fields(config)
    architectures = config.get("architectures")
    heads = fields.number("num_attention_heads", "n_head")
    hidden_size = fields.number("hidden_size", "n_embd")
    head_dim = fields.optional("head_dim", "kv_channels") or dialect.head_dim or hidden_size // heads
    kv_heads = heads if model_type == "baichuan" else fields.optional("num_key_value_heads") or heads
    qkv_bias, output_bias = _flag(dialect.qkv_bias, config), _flag(dialect.output_bias, config)
    mlp_bias = model_type == "llama" and bool(config.get("mlp_bias"))
    if model_type == "chatglm":
        intermediate = fields.number("ffn_hidden_size")
        if config.get("multi_query_attention"):
            kv_heads = fields.number("multi_query_group_num")
        output_bias = mlp_bias = bool(config.get("add_bias_linear"))
        qkv_bias = output_bias or bool(config.get("add_qkv_bias"))
    elif model_type == "qwen":  # the file tells gate and up projection as one
        intermediate = fields.number("intermediate_size", "ffn_hidden_size") // 2
    else:
        intermediate = fields.number("intermediate_size")
    shape = ModelShape(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        model_type=model_type,
        layers=fields.number("num_hidden_layers", "n_layer", "num_layers"),
        hidden_size=hidden_size,
        intermediate_size=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=fields.number("padded_vocab_size", "vocab_size"),
        max_position_embeddings=_longest(model_type, heads, config, fields),
        tied_embeddings=bool(config.get("tie_word_embeddings", dialect.tied)),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=dialect.qk_norm,
        mlp_bias=mlp_bias,
        norms_per_layer=dialect.norms_per_layer,
        position="alibi" if model_type == "baichuan" and heads != _BAICHUAN_7B_HEADS else "rope",
        sliding_window=_sliding_window(model_type, config, fields),
        dtype=str(config.get("torch_dtype") or config.get("dtype") or ""),
        quantization=quantization_of(config),
    )
    return _with_experts(shape, config, fields)


def _with_experts(shape: ModelShape, config: dict[str, Any], fields: Fields) -> ModelShape:
    if shape.model_type == "mixtral":
        return msgspec.structs.replace(
            shape,
            experts=fields.number("num_local_experts"),
            experts_per_token=fields.number("num_experts_per_tok"),
            moe_intermediate_size=shape.intermediate_size,
        )
    if shape.model_type not in ("qwen2_moe", "qwen3_moe"):
        return shape
    step = fields.optional("decoder_sparse_step") or 1
    told = config.get("mlp_only_layers")
    dense = told if isinstance(told, list) else []
    return msgspec.structs.replace(
        shape,
        experts=fields.number("num_experts"),
        experts_per_token=fields.number("num_experts_per_tok"),
        moe_intermediate_size=fields.number("moe_intermediate_size"),
        shared_intermediate_size=fields.optional("shared_expert_intermediate_size") or 0,
        dense_layers=sum(layer in dense or (layer + 1) % step != 0 for layer in range(shape.layers)),
    )


def _flag(decided: bool | None, config: dict[str, Any]) -> bool:
    return bool(config.get("attention_bias")) if decided is None else decided


def _longest(model_type: str, heads: int, config: dict[str, Any], fields: Fields) -> int | None:
    if model_type == "chatglm":
        return fields.optional("seq_length")
    if model_type == "qwen":
        # What lies beyond needs the dynamic NTK scaling of Qwen's own code, which TensorRT-LLM does not have.
        return fields.optional("seq_length", "max_position_embeddings", "n_positions")
    if model_type == "baichuan" and heads != _BAICHUAN_7B_HEADS:
        return fields.optional("model_max_length", "max_position_embeddings")
    longest = fields.optional("max_position_embeddings")
    return stretched(longest, config) if longest else None


def _sliding_window(model_type: str, config: dict[str, Any], fields: Fields) -> int | None:
    if model_type.startswith("qwen") and not config.get("use_sliding_window"):
        return None
    return fields.optional("sliding_window")
