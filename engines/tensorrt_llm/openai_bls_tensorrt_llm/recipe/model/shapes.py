"""Shape of a language model: parameter counts and the sizes that its memory depends on, from config.json alone.

transformers reads the file and counts the parameters of its own class. Code that comes with a checkpoint is never run:
the architectures of `_OWN_CODE` are counted as the classes of transformers that have the same layers.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from openai_bls.builder.checkpoint.config import first_architecture
from openai_bls.builder.checkpoint.parameter_count import ParameterCount, count_parameters
from openai_bls.builder.checkpoint.quantized import quantization_of
from openai_bls.core.checkpoint import scaled_positions
from openai_bls.core.manifest import BuildError, EngineSetupError, first_line


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer."""

    architecture: str
    """First of config.json's `architectures`, e.g. `Qwen2ForCausalLM`."""
    parameters: ParameterCount
    layers: int
    cache_layers: int
    """Layers that keep keys and values: all of them, without those of linear attention or a state space."""
    hidden_size: int
    intermediate_size: int
    """Intermediate size of a dense layer's MLP."""
    heads: int
    kv_heads: int
    head_dim: int
    latent_size: int = 0
    """Elements per token and layer that multi-head latent attention caches; 0 caches keys and values."""
    max_position_embeddings: int | None
    """Longest sequence in tokens, with the position scaling that config.json asks for."""
    sliding_window: int | None = None
    """Tokens that some of the layers attend to; None is all."""
    dtype: str = ""
    """Type of the weights on disk: `bfloat16`, `float16`, `float32`, or empty if config.json does not say."""
    quantization: str = ""
    """Quantization of the checkpoint: a name of `interface.Quant`, else config.json's own; empty is none."""

    @property
    def dense_layers(self) -> int:
        """Layers with an ordinary MLP."""
        return self.layers - self.parameters.moe_layers

    def cache_elements(self, kv_heads: int) -> int:
        """Elements per token in a layer's KV cache, of this many heads; a latent is not shared out to ranks."""
        return self.latent_size or 2 * kv_heads * self.head_dim

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """Bytes per token in the KV cache, over all layers."""
        return math.ceil(self.cache_layers * self.cache_elements(self.kv_heads) * bytes_per_element)


def shape_of(config: dict[str, Any]) -> ModelShape:
    """Shape of the model that the contents of a config.json describe.

    Raises:
        BuildError: transformers has no such model, cannot read the file or is not installed; one sentence.
    """
    known = _as_known(config)
    read, counts = _counted(known, first_architecture(config))
    text = read.get_text_config(decoder=True)
    written = known | (known.get("text_config") or {})
    for name in ("hidden_size", "num_hidden_layers"):
        # transformers has a default for everything, which would be a guess.
        if getattr(text, "attribute_map", {}).get(name, name) not in written and name not in written:
            raise BuildError(f"config.json has no usable {name}: the model's size cannot be worked out")
    layers, heads = _number(text, "num_hidden_layers"), _number(text, "num_attention_heads")
    cache_layers = _cache_layers(text, layers or 0)
    hidden_size = _number(text, "hidden_size")
    if not (layers and heads and hidden_size and cache_layers):
        raise BuildError(f"the size of {first_architecture(config)} is not worked out: it has no attention layers")
    latent, rope = _number(text, "kv_lora_rank"), _number(text, "qk_rope_head_dim") or 0
    head_dim = rope + (_number(text, "qk_nope_head_dim") or 0) if latent else _number(text, "head_dim")
    longest = _number(text, "max_position_embeddings")
    return ModelShape(
        architecture=first_architecture(config),
        parameters=counts,
        layers=layers,
        cache_layers=cache_layers,
        hidden_size=hidden_size,
        intermediate_size=_number(text, "intermediate_size", "n_inner") or 4 * hidden_size,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=head_dim or hidden_size // heads,
        latent_size=latent + rope if latent else 0,
        max_position_embeddings=scaled_positions(longest, written) if longest else None,
        sliding_window=_number(text, "sliding_window"),
        dtype=str(written.get("torch_dtype") or written.get("dtype") or ""),
        quantization=quantization_of(config),
    )


def _counted(config: dict[str, Any], architecture: str) -> tuple[Any, ParameterCount]:
    """transformers' reading of config.json, and the parameters of its model."""
    model_type = config.get("model_type")
    unread = ("model_type", "auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        if model_type not in list(CONFIG_MAPPING):
            raise BuildError(
                f"the size of a model is counted with its class in transformers, which has no model_type {model_type!r}"
            )
        read = CONFIG_MAPPING[model_type].from_dict({key: config[key] for key in config if key not in unread})
        return read, count_parameters(read, architecture)
    except ModuleNotFoundError as error:
        raise BuildError(
            f"the size of a model is counted with transformers and torch, and {error.name} is not installed here"
        ) from None
    except EngineSetupError:
        raise
    except Exception as error:  # whatever a model's class makes of strange values
        raise BuildError(f"transformers makes no model of this config.json: {first_line(error)}") from None


def _number(text: Any, *names: str) -> int | None:
    """The first of these fields that is a positive number."""
    values = (getattr(text, name, None) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


def _kv_heads(text: Any, heads: int) -> int:
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    return _number(text, "num_key_value_heads", "num_kv_heads") or heads


def _cache_layers(text: Any, layers: int) -> int:
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if not kinds:
        return layers
    return sum(kind == "hybrid" or ("attention" in kind and kind != "linear_attention") for kind in kinds)


# Sources: the Python code that comes with the checkpoints of baichuan, chatglm and qwen.
def _as_known(config: dict[str, Any]) -> dict[str, Any]:
    """config.json of a model that comes with its own code, as the class of transformers with the same layers has it."""

    def field(*names: str) -> int:
        value = optional(*names)
        if value is None:
            also = f" (nor {' or '.join(names[1:])})" if len(names) > 1 else ""
            raise BuildError(f"config.json has no usable {names[0]}{also}: the model's size cannot be worked out")
        return value

    def optional(*names: str) -> int | None:
        values = (config.get(name) for name in names)
        return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)

    match config.get("model_type"):
        case "baichuan":
            heads = field("num_attention_heads")
            # 7B has rotary positions, 13B has ALiBi and another name for its length.
            longest = ("max_position_embeddings",) if heads == 32 else ("model_max_length", "max_position_embeddings")
            changes = {"model_type": "llama", "max_position_embeddings": optional(*longest) or 4096}
            return config | changes | {"num_key_value_heads": heads}
        case "qwen":
            return config | {
                "model_type": "qwen2",
                # Gate and up projection together.
                "intermediate_size": field("intermediate_size", "ffn_hidden_size") // 2,
                "num_hidden_layers": field("num_hidden_layers", "n_layer"),
                "num_attention_heads": field("num_attention_heads", "n_head"),
                "num_key_value_heads": field("num_attention_heads", "n_head"),
                "hidden_size": field("hidden_size", "n_embd"),
                # TensorRT-LLM does not have the dynamic NTK scaling of Qwen's code.
                "max_position_embeddings": field("seq_length", "max_position_embeddings", "n_positions"),
            }
        case "chatglm":
            heads, biases = field("num_attention_heads"), bool(config.get("add_bias_linear"))
            return config | {
                # Glm has biases for queries, keys and values alone.
                "model_type": "llama" if biases else "glm",
                "attention_bias": biases or bool(config.get("add_qkv_bias")),
                "mlp_bias": biases,
                "intermediate_size": field("ffn_hidden_size"),
                "num_hidden_layers": field("num_layers"),
                "num_key_value_heads": field("multi_query_group_num") if config.get("multi_query_attention") else heads,
                "head_dim": optional("kv_channels") or field("hidden_size") // heads,
                "vocab_size": field("padded_vocab_size", "vocab_size"),
                "max_position_embeddings": field("seq_length"),
                # Glm's own is beyond ChatGLM 3's vocabulary.
                "pad_token_id": None,
            }
    return config
