"""Shapes of known models: the config.json of each, and the tensors that a checkpoint of its family has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from benchmarks.support import ROOT

DEMO = ROOT / "demo" / "checkpoint"

Tensors = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes, in the order of the layers."""


@dataclass(frozen=True)
class Family:
    """A kind of model."""

    config: dict[str, Any]
    """Fields of config.json that all its sizes have."""
    layer: Callable[[dict[str, Any]], Tensors]
    """Tensors of one layer, without the layer's own prefix, from config.json."""
    norm: float = 1.0
    """Weight of a norm that changes nothing."""
    windows: Callable[[int], bool] = field(default=lambda layer: False)
    """Whether a layer, counted from 0, has a sliding window."""


def _attention(config: dict[str, Any], *biased: str, head_norms: bool = False) -> Tensors:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    rows = {"q": heads * size, "k": config["num_key_value_heads"] * size, "v": config["num_key_value_heads"] * size}
    for name, shape in {**{name: (count, hidden) for name, count in rows.items()}, "o": (hidden, heads * size)}.items():
        yield f"self_attn.{name}_proj.weight", shape
        if name in biased:
            yield f"self_attn.{name}_proj.bias", shape[:1]
    if head_norms:
        for name in ("q_norm", "k_norm"):
            yield f"self_attn.{name}.weight", (size,)


def _mlp(hidden: int, inner: int, prefix: str = "mlp") -> Tensors:
    for name in ("gate_proj", "up_proj"):
        yield f"{prefix}.{name}.weight", (inner, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, inner)


def _norms(config: dict[str, Any], *further: str) -> Tensors:
    for name in ("input_layernorm", "post_attention_layernorm", *further):
        yield f"{name}.weight", (config["hidden_size"],)


def _qwen2(config: dict[str, Any]) -> Tensors:
    yield from _attention(config, "q", "k", "v")
    yield from _mlp(config["hidden_size"], config["intermediate_size"])
    yield from _norms(config)


def _llama(config: dict[str, Any]) -> Tensors:
    yield from _attention(config)
    yield from _mlp(config["hidden_size"], config["intermediate_size"])
    yield from _norms(config)


def _qwen3_moe(config: dict[str, Any]) -> Tensors:
    yield from _attention(config, head_norms=True)
    yield "mlp.gate.weight", (config["num_experts"], config["hidden_size"])
    for expert in range(config["num_experts"]):
        yield from _mlp(config["hidden_size"], config["moe_intermediate_size"], f"mlp.experts.{expert}")
    yield from _norms(config)


def _gemma3(config: dict[str, Any]) -> Tensors:
    yield from _attention(config, head_norms=True)
    yield from _mlp(config["hidden_size"], config["intermediate_size"])
    yield from _norms(config, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _gpt_oss(config: dict[str, Any]) -> Tensors:
    hidden, inner, experts = (config[name] for name in ("hidden_size", "intermediate_size", "num_local_experts"))
    yield from _attention(config, "q", "k", "v", "o")
    yield "self_attn.sinks", (config["num_attention_heads"],)
    yield "mlp.router.weight", (experts, hidden)
    yield "mlp.router.bias", (experts,)
    yield "mlp.experts.gate_up_proj", (experts, hidden, 2 * inner)
    yield "mlp.experts.gate_up_proj_bias", (experts, 2 * inner)
    yield "mlp.experts.down_proj", (experts, inner, hidden)
    yield "mlp.experts.down_proj_bias", (experts, hidden)
    yield from _norms(config)


def _config(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    common = {
        "architectures": [architecture],
        "model_type": model_type,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }
    return common | fields


def _rope(theta: float, rope_type: str = "default", **fields: Any) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_type": rope_type, **fields}


_LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
_YARN = {
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
FAMILIES: Final[dict[str, Family]] = {
    "qwen2": Family(
        _config(
            *("Qwen2ForCausalLM", "qwen2"),
            hidden_act="silu",
            rms_norm_eps=1e-06,
            rope_theta=1000000.0,
            rope_parameters=_rope(1000000.0),
            sliding_window=None,
            use_sliding_window=False,
        ),
        _qwen2,
    ),
    "llama": Family(
        _config(
            *("LlamaForCausalLM", "llama"),
            hidden_act="silu",
            rms_norm_eps=1e-05,
            rope_parameters=_rope(500000.0, "llama3", **_LLAMA3),
        ),
        _llama,
    ),
    "qwen3_moe": Family(
        _config(
            *("Qwen3MoeForCausalLM", "qwen3_moe"),
            hidden_act="silu",
            rms_norm_eps=1e-06,
            rope_parameters=_rope(1000000.0),
            decoder_sparse_step=1,
            mlp_only_layers=[],
            norm_topk_prob=True,
            sliding_window=None,
            use_sliding_window=False,
        ),
        _qwen3_moe,
    ),
    "gemma3": Family(
        _config(
            *("Gemma3ForCausalLM", "gemma3_text"),
            hidden_activation="gelu_pytorch_tanh",
            rms_norm_eps=1e-06,
            rope_parameters={
                "full_attention": _rope(1000000.0, "linear", factor=8.0),
                "sliding_attention": _rope(10000.0),
            },
            query_pre_attn_scalar=256,
            tie_word_embeddings=True,
        ),
        _gemma3,
        norm=0.0,  # its norms multiply by one more than the weight
        windows=lambda layer: bool((layer + 1) % 6),
    ),
    "gpt_oss": Family(
        _config(
            *("GptOssForCausalLM", "gpt_oss"),
            attention_bias=True,
            hidden_act="silu",
            rms_norm_eps=1e-05,
            rope_parameters=_rope(150000.0, "yarn", **_YARN),
            swiglu_limit=7.0,
        ),
        _gpt_oss,
        windows=lambda layer: layer % 2 == 0,
    ),
}


@dataclass(frozen=True)
class Shape:
    """A model of a family."""

    family: str
    sizes: dict[str, Any]
    """Fields of config.json."""
    alike: bool = False
    """All layers have the numbers of one, so that a large checkpoint is written quickly."""


def _sizes(
    hidden: int, inner: int, layers: int, heads: tuple[int, int], context: int, vocabulary: int
) -> dict[str, Any]:
    """Fields of config.json.

    Args:
        hidden: size of a token's state.
        inner: size of a dense layer's middle.
        layers: number of layers.
        heads: numbers of query heads and of key-value heads.
        context: longest sequence in tokens.
        vocabulary: rows of the embeddings.
    """
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "max_position_embeddings": context,
        "vocab_size": vocabulary,
    }


_FP8 = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
"""A scale for each matrix, as vLLM reads it."""
_TINY = _sizes(64, 128, 2, (4, 2), 2048, 4096)
# vLLM has no attention of narrower heads on a CPU.
_TINY_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32}
_QWEN3_A3B = _sizes(2048, 6144, 48, (32, 4), 40960, 151936) | {
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "head_dim": 128,
}
SHAPES: Final[dict[str, Shape]] = {
    "qwen2.5-7b": Shape("qwen2", _sizes(3584, 18944, 28, (28, 4), 32768, 152064)),
    # More than one GPU of 80 GB holds with a KV cache.
    "qwen2.5-72b-fp8": Shape("qwen2", _sizes(8192, 29568, 80, (64, 8), 32768, 152064) | _FP8, alike=True),
    "qwen2.5-0.5b": Shape("qwen2", _sizes(896, 4864, 24, (14, 2), 32768, 151936)),
    "llama-3.1-8b": Shape("llama", _sizes(4096, 14336, 32, (32, 8), 131072, 128256), alike=True),
    "qwen3-30b-a3b": Shape("qwen3_moe", _QWEN3_A3B, alike=True),
    # Two servers have room for it on one GPU.
    "qwen3-30b-a3b-half": Shape("qwen3_moe", _QWEN3_A3B | {"num_hidden_layers": 24}, alike=True),
    "gemma-3-4b": Shape(
        "gemma3",
        _sizes(2560, 10240, 34, (8, 4), 131072, 262208) | {"head_dim": 256, "sliding_window": 1024},
        alike=True,
    ),
    "gpt-oss-20b": Shape(
        "gpt_oss",
        _sizes(2880, 2880, 24, (64, 8), 131072, 201088)
        | {"num_local_experts": 32, "num_experts_per_tok": 4, "head_dim": 64, "sliding_window": 128},
        alike=True,
    ),
    "tiny": Shape("qwen2", _TINY),
    "tiny-fp8": Shape("qwen2", _TINY | _FP8 | {"num_hidden_layers": 4}, alike=True),
    "tiny-llama": Shape("llama", _TINY | {"head_dim": 32}, alike=True),
    "tiny-qwen3-moe": Shape("qwen3_moe", _TINY | _TINY_MOE, alike=True),
    "tiny-gemma3": Shape("gemma3", _TINY | {"head_dim": 32, "sliding_window": 16, "num_hidden_layers": 6}, alike=True),
    "tiny-gpt-oss": Shape(
        "gpt_oss",
        _TINY | {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": 16},
        alike=True,
    ),
}


def configuration(like: str) -> dict[str, Any]:
    """config.json of the shape `like`, with the demo's special tokens."""
    shape = SHAPES[like]
    family = FAMILIES[shape.family]
    demo = msgspec.json.decode((DEMO / "config.json").read_bytes())
    tokens = {name: demo.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    kinds = ("full_attention", "sliding_attention")
    layers = [kinds[family.windows(layer)] for layer in range(shape.sizes["num_hidden_layers"])]
    return family.config | shape.sizes | tokens | {"layer_types": layers}


def tensor_shapes(like: str) -> Tensors:
    """Name and shape of every tensor of a checkpoint `like`, in the order of the layers."""
    config, family = configuration(like), FAMILIES[SHAPES[like].family]
    yield "model.embed_tokens.weight", (config["vocab_size"], config["hidden_size"])
    for number in range(config["num_hidden_layers"]):
        for name, shape in family.layer(config):
            yield f"model.layers.{number}.{name}", shape
    yield "model.norm.weight", (config["hidden_size"],)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], config["hidden_size"])


def stored_bytes(like: str) -> int:
    """Bytes of the weights of a checkpoint `like`, about: in FP8 one for each number, else two."""
    each = 1 if "quantization_config" in SHAPES[like].sizes else 2
    return each * sum(math.prod(shape) for _, shape in tensor_shapes(like))
