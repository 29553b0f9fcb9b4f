"""Files of a checkpoint: checked, converted where need be, and placed in the engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder import convert_tokenizer
from openai_bls.builder.checkpoint.files import (
    PYTORCH,
    SAFETENSORS,
    TOKENIZER_FILES,
    TOKENIZER_SOURCES,
    check_tokenizer,
    read_headers,
    weight_files,
)
from openai_bls.builder.gguf_source import WEIGHTS_NAME, write_weights
from openai_bls.builder.model_kind import causal_lm, quantized
from openai_bls.core import fp8_checkpoint
from openai_bls.core.checkpoint import CheckpointFacts, Tensors, missing_weights, read_checkpoint, read_json
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.launcher import progress

# Larger files are linked where the file system can, not copied. Small ones are copied even so: a training run that
# writes over its own checkpoint would reach through a link into the engine.
_LINKED_BYTES = 1 << 28


def place(source: Path, target: Path, advance: progress.Advance = lambda _: None) -> None:
    """Link or copy a file into the engine; `advance` is told the bytes."""
    source = source.resolve()
    if source.stat().st_size >= _LINKED_BYTES:
        try:
            os.link(source, target)
            advance(source.stat().st_size)
        except OSError:  # another file system, or one without links
            progress.copy(source, target, advance)
        return
    shutil.copyfile(source, target)
    advance(source.stat().st_size)


def place_weights(
    source: Path, target: Path, facts: CheckpointFacts, report: Callable[[str], None], *, trust_remote_code: bool
) -> None:
    """Put the weights of a causal language model into `target` as safetensors.

    Raises:
        BuildError: no causal language model, or weights that are missing or do not load.
    """
    note = causal_lm(source, facts, trust_remote_code=trust_remote_code)
    if note is not None:
        report(note)
    if (source / WEIGHTS_NAME).is_file():
        write_weights(source, target, report)
        return
    whole = not quantized(source) and not trust_remote_code
    if trust_remote_code:
        _place_code(source, target)
    names, tensors = find_weights(source)
    if fp8_checkpoint.quantization(source) is not None:
        fp8_checkpoint.scale_names(tensors)
    if tensors:
        if whole:
            _require_whole(source, tensors)
        _place_files(source, target, names, report)
    else:
        report("weights: converting PyTorch files to safetensors")
        _convert(source, target, trust_remote_code=trust_remote_code)


def place_as_it_is(source: Path, target: Path, report: Callable[[str], None], *, trust_remote_code: bool) -> None:
    """Put the weights into `target` in the format that they have, for an engine that reads them itself.

    Raises:
        BuildError: there are none, or some are missing.
    """
    if trust_remote_code:
        _place_code(source, target)
    _place_files(source, target, find_weights(source)[0], report)


def _place_code(source: Path, target: Path) -> None:
    for path in source.glob("*.py"):
        place(path, target / path.name)


def _place_files(source: Path, target: Path, names: Sequence[str], report: Callable[[str], None]) -> None:
    with progress.bar("weights", sum((source / name).stat().st_size for name in names)) as bar:
        for number, name in enumerate(names, 1):
            report(f"weights {number}/{len(names)}: {name}")
            place(source / name, target / name, bar.advance)


def find_weights(source: Path) -> tuple[list[str], Tensors]:
    """Names of the files with the weights of the checkpoint in `source`, and their tensors; {} for PyTorch's own files.

    Raises:
        BuildError: there are none, or some are missing, cut off or damaged.
    """
    names = weight_files(source) or weight_files(source, PYTORCH)
    if not names:
        others = sorted(
            path.name for path in source.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth")
        )
        beside = f"; {', '.join(others[:3])} is none of these" if others else ""
        raise BuildError(f"{source} has no weights ({SAFETENSORS}, {PYTORCH}, or their parts with an index){beside}")
    return names, read_headers(source, names)


def place_tokenizer(source: Path, target: Path, report: Callable[[str], None], *, trust_remote_code: bool) -> None:
    """Put the tokenizer's files, with a tokenizer.json in any case, and generation_config.json into `target`.

    Raises:
        BuildError: there is no tokenizer, none that can be written as tokenizer.json, or one of another model.
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
    beyond = check_tokenizer(target, source, read_checkpoint(source).vocab_size)
    if beyond:
        named = ", ".join(beyond[:5]) + (f" and {len(beyond) - 5} more" if len(beyond) > 5 else "")
        report(f"the tokenizer has tokens that the model has not: {named}; prompts with them are refused")
    templates = source / "additional_chat_templates"
    if templates.is_dir() and not (target / templates.name).exists():
        shutil.copytree(templates, target / templates.name)


def _require_whole(source: Path, tensors: Tensors) -> None:
    from openai_bls.builder.checkpoint.tensor_check import tensor_problem

    try:
        problem = tensor_problem(source, tensors)
    except Exception as error:  # whatever a model's class makes of strange values
        problem = f"transformers makes no model of them: {first_line(error)}"
    if problem is not None:
        raise BuildError(f"the weights in {source} are not those of the model in its config.json: {problem}")


def _convert(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    import transformers

    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype="auto", trust_remote_code=trust_remote_code, local_files_only=True, output_loading_info=True
        )
        reason = missing_weights(info["missing_keys"])
        if reason is None:
            model.save_pretrained(target)
    except Exception as error:
        reason = first_line(error)
    if reason is not None:
        raise BuildError(f"the weights of {source} cannot be converted to safetensors: {reason}")


def _write_made(made: convert_tokenizer.Made, source: Path, target: Path) -> None:
    """Files of a tokenizer that stands for one in Python; what the checkpoint says itself is not in them."""
    made.tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(made.config), indent=2))
    has_template = "chat_template" in made.config or (source / "chat_template.jinja").is_file()
    if made.chat_template and not has_template:
        (target / "chat_template.jinja").write_text(made.chat_template, encoding="utf-8")
    if made.end_tokens:
        generation = _json_if_any(source / "generation_config.json")
        told = generation.get("eos_token_id", read_json(source / "config.json").get("eos_token_id"))
        ends = told if isinstance(told, list) else [told] * (told is not None)
        generation["eos_token_id"] = list(dict.fromkeys([*ends, *made.end_tokens]))
        (target / "generation_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(generation), indent=2))


def _json_if_any(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _make_fast(source: Path, target: Path, *, trust_remote_code: bool) -> None:
    import transformers

    if not any(path for pattern in TOKENIZER_SOURCES for path in source.glob(pattern)):
        raise BuildError(f"{source} has no tokenizer.json and none can be made from the files it has")
    own_code = "AutoTokenizer" in (_json_if_any(source / "tokenizer_config.json").get("auto_map") or {})
    if own_code and not trust_remote_code:
        # transformers would fill a class of its own with these files, for other token ids.
        raise BuildError(
            f"{source} has no tokenizer.json but a tokenizer of its own in Python: pass --trust-remote-code if "
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
        raise BuildError(
            f"{source} has no tokenizer.json but {whose} cannot be written as one ({reason}): text is tokenized "
            "and detokenized from tokenizer.json alone, so put one beside the checkpoint that makes the same token ids"
        )
