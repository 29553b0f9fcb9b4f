"""A checkpoint's files on their way into the repository: which there are, which are refused, which are converted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.engine.checkpoint import CheckpointFacts
from openai_bls.engine.manifest import EngineLoadError, short

CONFIG_FILES = ("config.json", "generation_config.json")
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

_INDEX = "model.safetensors.index.json"


def place(source: Path, target: Path) -> None:
    """Put a file into the engine."""
    source = source.resolve()
    if source.stat().st_size >= _LINKED_BYTES:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or one without links
    shutil.copyfile(source, target)


def place_weights(
    source: Path,
    target: Path,
    facts: CheckpointFacts,
    report: Callable[[str], None],
    *,
    trust_remote_code: bool,
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
    elif any(source.glob("pytorch_model*.bin")):
        report("weights: converting PyTorch files to safetensors")
        _convert(source, target, trust_remote_code=trust_remote_code)
    else:
        raise EngineLoadError(f"{short(source)} has no weights (*.safetensors)")


def place_tokenizer(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    """Put the tokenizer's files, with a tokenizer.json in any case, and generation_config.json into `target`.

    Raises:
        EngineLoadError: there is no tokenizer, or none that can be written as tokenizer.json.
    """
    if not (source / "tokenizer.json").is_file():
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


def _weight_files(source: Path) -> list[str]:
    index = source / _INDEX
    if not index.is_file():
        return ["model.safetensors"] if (source / "model.safetensors").is_file() else []
    try:
        names = sorted(set(msgspec.json.decode(index.read_bytes())["weight_map"].values()))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        raise EngineLoadError(f"{short(index)} is not readable") from None
    for name in names:
        if not (source / name).is_file():
            raise EngineLoadError(f"{short(source / name)} is missing, though {_INDEX} names it")
    return [*names, _INDEX]


def _convert(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    import transformers

    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype="auto", trust_remote_code=trust_remote_code, local_files_only=True
        )
        model.save_pretrained(target)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EngineLoadError(f"the weights of {short(source)} cannot be converted to safetensors: {reason}") from None


def _make_fast(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    import transformers

    no_tokenizer = EngineLoadError(f"{short(source)} has no tokenizer.json and none can be made from the files it has")
    if not any(path for pattern in _TOKENIZER_SOURCES for path in source.glob(pattern)):
        raise no_tokenizer
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, use_fast=True, trust_remote_code=trust_remote_code, local_files_only=True
        )
        tokenizer.save_pretrained(target)
        found = (target / "tokenizer.json").is_file()
    except Exception:  # what a folder without tokenizer files raises differs from class to class
        found = False
    if not found:
        raise no_tokenizer
