"""Facts of a Hugging Face checkpoint, read from its JSON files and the headers of its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.manifest import EngineLoadError, first_line

GGUF_NAME = "model.gguf"
"""Name of a GGUF file in a checkpoint's folder."""

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Name of a tensor → its type in safetensors' words (`BF16`) and its shape."""


class CheckpointFacts(msgspec.Struct, frozen=True):
    """The parts of config.json and generation_config.json that an engine needs to know."""

    architecture: str
    """E.g. `Qwen2ForCausalLM`; empty if unknown."""
    model_type: str
    vocab_size: int
    max_position_embeddings: int | None
    """Longest sequence in tokens, with the position scaling that config.json asks for."""
    kv_bytes_per_token: int
    """Bytes of keys and values per token at float32; 0 if unknown."""
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    sampling_defaults: SamplingParams


def read_checkpoint(folder: Path) -> CheckpointFacts:
    """Facts about the checkpoint in `folder`.

    Raises:
        EngineLoadError: no readable config.json with a vocabulary size.
    """
    return facts_of(folder, read_json(folder / "config.json"), generation_config(folder))


def generation_config(folder: Path) -> dict[str, Any]:
    """Contents of generation_config.json; {} where there is none.

    Raises:
        EngineLoadError: it cannot be read.
    """
    path = folder / "generation_config.json"
    return read_json(path) if path.exists() else {}


def facts_of(folder: Path, config: dict[str, Any], generation: dict[str, Any]) -> CheckpointFacts:
    """Facts about a checkpoint, of its files' contents.

    End tokens come from generation_config.json, else from config.json. Sampling values that generation_config.json
    sets are the defaults even if its `do_sample` is false; where it sets none, OpenAI's temperature of 1 applies.

    Args:
        folder: folder of the checkpoint, for the message.
        config: contents of config.json.
        generation: contents of generation_config.json; {} where there is none.

    Raises:
        EngineLoadError: config.json has no vocabulary size.
    """
    text = text_config(config)
    if "vocab_size" not in text and "padded_vocab_size" not in text:
        text = _class_defaults(text) | text
    # The other names, here and below, are ChatGLM's.
    vocab_size = text.get("vocab_size", text.get("padded_vocab_size"))
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise EngineLoadError(f"{folder}/config.json has no vocab_size: not a language model")
    architectures = config.get("architectures")
    eos = generation.get("eos_token_id", text.get("eos_token_id"))
    pad = generation.get("pad_token_id", text.get("pad_token_id"))
    return CheckpointFacts(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        model_type=str(config.get("model_type", "")),
        vocab_size=vocab_size,
        max_position_embeddings=context_length(text),
        kv_bytes_per_token=_kv_bytes_per_token(text),
        eos_token_ids=_token_ids(eos, vocab_size),
        pad_token_id=next(iter(_token_ids(pad, vocab_size)), None),
        sampling_defaults=_sampling_defaults(generation),
    )


def _class_defaults(text: dict[str, Any]) -> dict[str, Any]:
    """Fields that transformers' class for this model_type has; a checkpoint may leave them out, as Gemma 3 does."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        defaults: dict[str, Any] = CONFIG_MAPPING[text["model_type"]]().get_text_config().to_dict()
    except (ImportError, KeyError):
        return {}
    return defaults


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Fields of the language model: config.json's own, and over them those of its `text_config`."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names that config.json has for the number of experts of a layer."""


def expert_count(config: Mapping[str, Any]) -> int:
    """Experts of a layer, by the fields of a language model; 0 if it has none."""
    return max((count for name in _EXPERTS if isinstance(count := config.get(name), int)), default=0)


# Names of the longest sequence: nearly everyone's, GPT-2's, ChatGLM's and BLOOM's, MPT's, Baichuan's.
_LENGTHS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "model_max_length")


def context_length(config: dict[str, Any]) -> int | None:
    """Longest sequence, in tokens, that the model of a config.json takes; None if it does not say."""
    text = text_config(config)
    # GPT-2's learned positions have no value beyond the table, so a missing name must not mean "any length".
    lengths = (text.get(name) for name in _LENGTHS)
    positions = next((length for length in lengths if is_count(length)), None)
    return None if positions is None else scaled_positions(positions, text)


def scaled_positions(positions: int, text: dict[str, Any]) -> int:
    """Longest sequence of a model with `positions` position embeddings under its RoPE scaling.

    YaRN's recipe leaves `max_position_embeddings` as it was or raises it, so the product of its factor and the original
    length counts. `linear` and `dynamic` are factors of what is written. All other kinds (llama3, longrope), and Gemma
    3, whose factor is for some of its layers, have their scaling in `max_position_embeddings` already.

    Args:
        positions: `max_position_embeddings` under whatever name.
        text: mapping that `text_config` returns.
    """
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(rope, dict):
        return positions
    # transformers 5 may have one description per kind of layer. A sliding window's positions are relative and near.
    by_layer = [value for name, value in rope.items() if isinstance(value, dict) and name != "sliding_attention"]
    some_layers = bool(by_layer) or str(text.get("model_type")).startswith("gemma3")
    longest = positions
    for one in by_layer or [rope]:
        kind, factor = one.get("rope_type", one.get("type")), one.get("factor")
        if not isinstance(factor, int | float) or kind not in ("yarn", "linear", "dynamic"):
            continue
        original = text.get("original_max_position_embeddings", one.get("original_max_position_embeddings"))
        if kind == "yarn" or not some_layers:
            longest = max(longest, int((original if is_count(original) else positions) * factor))
    return longest


def is_count(value: object) -> TypeGuard[int]:
    """True for a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def content_problem(path: Path) -> str | None:
    """Predicate about a file that a failed download left at `path`, to follow its name; None for any other file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(64).lstrip().lower()
    if not head:
        return "is empty: download or copy it again"
    if head.startswith(b"version https://git-lfs"):
        return "is a git-LFS pointer, not the file: run `git lfs pull` in the checkpoint's directory"
    if head.startswith((b"<!doctype", b"<html")):
        return "is a web page, not the file: download it again, logged in if the page wants that"
    return None


def require_content(path: Path) -> None:
    """Check that the file at `path` is there and not one of those that a failed download leaves in its place.

    Raises:
        EngineLoadError: it is missing, empty, a git-LFS pointer or a web page.
    """
    try:
        problem = content_problem(path)
    except FileNotFoundError:
        raise EngineLoadError(f"{path.parent} has no {path.name}") from None
    except OSError as error:
        raise EngineLoadError(f"cannot read {path}: {error.strerror}") from None
    if problem is not None:
        raise EngineLoadError(f"{path} {problem}")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file at `path`.

    Raises:
        EngineLoadError: there is none that can be read.
    """
    require_content(path)
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise EngineLoadError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise EngineLoadError(f"{path} is not a JSON object")
    return value


def safetensors_header(path: Path) -> Tensors:
    """Tensors of a safetensors file; their values are not read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is cut off or damaged.
    """
    # The Triton models read JSON files here, and have no use for it.
    from safetensors import SafetensorError, safe_open

    try:
        # Maps the file and holds its length against the offsets in its header.
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except SafetensorError as error:
        raise ValueError(first_line(error)) from None


def missing_weights(names: Collection[str]) -> str | None:
    """Sentence about weights that no file has; None if there are none."""
    if not names:
        return None
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"no file has {min(names)}{more} of the model's weights"


def _token_ids(value: object, vocab_size: int) -> tuple[int, ...]:
    """Token ids of one id, a list, or nothing; ids outside the vocabulary (such as -1) are left out."""
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and 0 <= v < vocab_size)


def _kv_bytes_per_token(config: dict[str, Any]) -> int:
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    layers, hidden, queries = (config.get(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    head_dim = config.get("head_dim")
    if head_dim is None and is_count(hidden) and is_count(queries):
        head_dim = hidden // queries
    # Of some models each layer has its own.
    if not (is_count(heads) and is_count(layers) and is_count(head_dim)):
        return 0
    return 2 * 4 * layers * heads * head_dim


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
