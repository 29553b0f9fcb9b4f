"""Facts of a Hugging Face checkpoint, read from its JSON files without transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import EngineLoadError, short


class CheckpointFacts(msgspec.Struct, frozen=True):
    """The parts of config.json and generation_config.json that an engine needs to know."""

    architecture: str
    """E.g. `Qwen2ForCausalLM`; empty if unknown."""
    model_type: str
    vocab_size: int
    max_position_embeddings: int | None
    """Maximum tokens of a sequence that the model was trained for."""
    kv_bytes_per_token: int
    """Bytes of keys and values per token at float32; 0 if unknown."""
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    sampling_defaults: SamplingParams


def read_checkpoint(folder: Path) -> CheckpointFacts:
    """Facts about the checkpoint in `folder`.

    End tokens come from generation_config.json, else from config.json. Sampling values that generation_config.json
    sets are the defaults even if its `do_sample` is false; where it sets none, OpenAI's temperature of 1 applies.

    Raises:
        EngineLoadError: no readable config.json with a vocabulary size.
    """
    config = _read_json(folder / "config.json", required=True)
    generation = _read_json(folder / "generation_config.json", required=False)
    text = config.get("text_config")
    text = {**config, **text} if isinstance(text, dict) else config
    # The other names, here and below, are ChatGLM's.
    vocab_size = text.get("vocab_size", text.get("padded_vocab_size"))
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise EngineLoadError(f"{short(folder)}/config.json has no vocab_size: not a language model")
    architectures = config.get("architectures") or [""]
    eos = generation.get("eos_token_id", text.get("eos_token_id"))
    pad = generation.get("pad_token_id", text.get("pad_token_id"))
    length = text.get("max_position_embeddings", text.get("seq_length"))
    return CheckpointFacts(
        architecture=str(architectures[0]),
        model_type=str(config.get("model_type", "")),
        vocab_size=vocab_size,
        max_position_embeddings=length if isinstance(length, int) and length > 0 else None,
        kv_bytes_per_token=_kv_bytes_per_token(text),
        eos_token_ids=_token_ids(eos, vocab_size),
        pad_token_id=next(iter(_token_ids(pad, vocab_size)), None),
        sampling_defaults=_sampling_defaults(generation),
    )


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise EngineLoadError(f"{short(path.parent)} has no {path.name}") from None
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise EngineLoadError(f"cannot read {short(path)}: {error}") from None
    if not isinstance(value, dict):
        raise EngineLoadError(f"{short(path)} is not a JSON object")
    return value


def _token_ids(value: object, vocab_size: int) -> tuple[int, ...]:
    """Token ids of one id, a list, or nothing; ids outside the vocabulary (such as -1) are left out."""
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and 0 <= v < vocab_size)


def _kv_bytes_per_token(config: dict[str, Any]) -> int:
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    head_dim = config.get("head_dim")
    if head_dim is None and hidden and config.get("num_attention_heads"):
        head_dim = hidden // config["num_attention_heads"]
    if not (heads and layers and head_dim):
        return 0
    return int(2 * 4 * layers * heads * head_dim)


def _sampling_defaults(generation: dict[str, Any]) -> SamplingParams:
    given = {
        name: generation[name]
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        if isinstance(generation.get(name), int | float)
    }
    if given.get("repetition_penalty", 1) <= 0:
        del given["repetition_penalty"]
    try:
        return msgspec.convert(given, SamplingParams)
    except msgspec.ValidationError:
        return SamplingParams()
