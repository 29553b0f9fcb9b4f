"""Files of a checkpoint: checked, converted where need be, and placed in the engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder import convert_tokenizer
from openai_bls.builder.gguf_source import WEIGHTS_NAME, write_weights
from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.manifest import EngineLoadError, first_line, short

# The last two say how a checkpoint is quantized, where config.json does not.
CONFIG_FILES = ("config.json", "generation_config.json", "hf_quant_config.json", "quantize_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
# What a tokenizer.json can be made from. Asked for here, because transformers makes an empty tokenizer out of nothing.
_TOKENIZER_SOURCES = ("*.model", "vocab.json", "vocab.txt", "*.tiktoken", "tekken.json")
# Larger files are linked where the file system can, not copied. Small ones are copied even so: a training run that
# writes over its own checkpoint would reach through a link into the engine.
_LINKED_BYTES = 1 << 28


def place(source: Path, target: Path) -> None:
    """Link or copy a file into the engine."""
    source = source.resolve()
    if source.stat().st_size >= _LINKED_BYTES:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or one without links
    shutil.copyfile(source, target)


def place_weights(
    source: Path, target: Path, facts: CheckpointFacts, report: Callable[[str], None], *, trust_remote_code: bool
) -> None:
    """Put the weights of a causal language model into `target` as safetensors.

    Raises:
        EngineLoadError: no causal language model, or weights that are missing or do not load.
    """
    _require_causal_lm(source, facts, trust_remote_code=trust_remote_code)
    if trust_remote_code:
        for path in source.glob("*.py"):
            place(path, target / path.name)
    names = _weight_files(source)
    if names:
        for number, name in enumerate(names, 1):
            report(f"weights {number}/{len(names)}: {name}")
            place(source / name, target / name)
    elif (source / WEIGHTS_NAME).is_file():
        write_weights(source, target, report)
    elif any(source.glob("pytorch_model*.bin")):
        report("weights: converting PyTorch files to safetensors")
        _convert(source, target, trust_remote_code=trust_remote_code)
    else:
        raise EngineLoadError(f"{short(source)} has no weights (*.safetensors)")


def place_as_it_is(source: Path, target: Path, report: Callable[[str], None], *, trust_remote_code: bool) -> None:
    """Put the weights into `target` in the format that they have, for an engine that reads them itself.

    Raises:
        EngineLoadError: there are none, or some are missing.
    """
    if trust_remote_code:
        for path in source.glob("*.py"):
            place(path, target / path.name)
    names = weight_names(source)
    for number, name in enumerate(names, 1):
        report(f"weights {number}/{len(names)}: {name}")
        place(source / name, target / name)


def weight_names(source: Path) -> list[str]:
    """Names of the files with the weights of the checkpoint in `source`, as safetensors or PyTorch's own.

    Raises:
        EngineLoadError: there are none, or some are missing.
    """
    names = _weight_files(source) or _weight_files(source, "pytorch_model.bin")
    if not names:
        raise EngineLoadError(f"{short(source)} has no weights (*.safetensors, pytorch_model*.bin)")
    return names


def place_tokenizer(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    """Put the tokenizer's files, with a tokenizer.json in any case, and generation_config.json into `target`.

    Raises:
        EngineLoadError: there is no tokenizer, or none that can be written as tokenizer.json.
    """
    if not (source / "tokenizer.json").is_file():
        made = convert_tokenizer.make(source)
        if made is not None:
            _write_made(made, source, target)
        else:
            _make_fast(source, target, trust_remote_code=trust_remote_code)
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and not (target / name).exists():
            place(source / name, target / name)
    templates = source / "additional_chat_templates"
    if templates.is_dir() and not (target / templates.name).exists():
        shutil.copytree(templates, target / templates.name)


def _require_causal_lm(source: Path, facts: CheckpointFacts, *, trust_remote_code: bool) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config: dict[str, Any] = msgspec.json.decode((source / "config.json").read_bytes())
    if "AutoModelForCausalLM" in config.get("auto_map", {}):
        if not trust_remote_code:
            raise EngineLoadError(
                f"{short(source)} comes with Python code of its own: pass --trust-remote-code if you trust it"
            )
        return
    if facts.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise EngineLoadError(
            f"{short(source)} is no causal language model that transformers knows "
            f"(model_type {facts.model_type!r}, architecture {facts.architecture!r})"
        )
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[facts.model_type]
    names = (known,) if isinstance(known, str) else tuple(known)
    if facts.architecture and facts.architecture not in names and "CausalLM" not in facts.architecture:
        raise EngineLoadError(f"{short(source)} is no causal language model but a {facts.architecture}")


def _weight_files(source: Path, single: str = "model.safetensors") -> list[str]:
    """Names of the files that hold the weights: `single`, or the parts that its index lists, and the index."""
    index = source / f"{single}.index.json"
    if not index.is_file():
        return [single] if (source / single).is_file() else []
    try:
        names = sorted(set(msgspec.json.decode(index.read_bytes())["weight_map"].values()))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        raise EngineLoadError(f"{short(index)} is not readable") from None
    for name in names:
        if not (source / name).is_file():
            raise EngineLoadError(f"{short(source / name)} is missing, though {index.name} names it")
    return [*names, index.name]


def _convert(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    import transformers

    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype="auto", trust_remote_code=trust_remote_code, local_files_only=True
        )
        model.save_pretrained(target)
    except Exception as error:
        reason = first_line(error)
        raise EngineLoadError(f"the weights of {short(source)} cannot be converted to safetensors: {reason}") from None


def _write_made(made: convert_tokenizer.Made, source: Path, target: Path) -> None:
    """Files of a tokenizer that stands for one in Python; what the checkpoint says itself is not in them."""
    made.tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(made.config), indent=2))
    has_template = "chat_template" in made.config or (source / "chat_template.jinja").is_file()
    if made.chat_template and not has_template:
        (target / "chat_template.jinja").write_text(made.chat_template, encoding="utf-8")
    if made.end_tokens:
        generation = _json_object(source / "generation_config.json")
        told = generation.get("eos_token_id", _json_object(source / "config.json").get("eos_token_id"))
        ends = told if isinstance(told, list) else [told] * (told is not None)
        generation["eos_token_id"] = list(dict.fromkeys([*ends, *made.end_tokens]))
        (target / "generation_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(generation), indent=2))


def _json_object(path: Path) -> dict[str, Any]:
    """JSON object in a file; empty if there is none."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _make_fast(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    import transformers

    if not any(path for pattern in _TOKENIZER_SOURCES for path in source.glob(pattern)):
        raise EngineLoadError(f"{short(source)} has no tokenizer.json and none can be made from the files it has")
    own_code = "AutoTokenizer" in (_json_object(source / "tokenizer_config.json").get("auto_map") or {})
    if own_code and not trust_remote_code:
        # transformers would fill a class of its own with these files, for other token ids.
        raise EngineLoadError(
            f"{short(source)} has no tokenizer.json but a tokenizer of its own in Python: pass --trust-remote-code if "
            "you trust it and one may be made from that, or put a tokenizer.json beside the checkpoint"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, use_fast=True, trust_remote_code=trust_remote_code, local_files_only=True
        )
        tokenizer.save_pretrained(target)
        found, reason = (target / "tokenizer.json").is_file(), "it is saved without one"
    except Exception as error:  # what a folder without tokenizer files raises differs from class to class
        found, reason = False, first_line(error)
    if not found:
        whose = "a tokenizer of its own in Python, which" if own_code else "a tokenizer that"
        raise EngineLoadError(
            f"{short(source)} has no tokenizer.json but {whose} cannot be written as one ({reason}): text is tokenized "
            "and detokenized from tokenizer.json alone, so put one beside the checkpoint that makes the same token ids"
        )
