"""Tokenizer of a checkpoint put into the engine, as a tokenizer.json in any case."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from openai_bls.builder.checkpoint.files import TOKENIZER_FILES, TOKENIZER_SOURCES, check_tokenizer
from openai_bls.builder.placing.files import place
from openai_bls.builder.tokenizer import python_code
from openai_bls.builder.tokenizer.processor import place_processor
from openai_bls.core.checkpoint import read_checkpoint, read_json
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.engines.images.processor import has_processor
from openai_bls.triton_models.preprocessing import rendering
from openai_bls.triton_models.preprocessing.prompt import load_tokenizer


def place_tokenizer(source: Path, target: Path, report: Callable[[str], None], *, trust_remote_code: bool) -> None:
    """Put the tokenizer's files, with a tokenizer.json in any case, generation_config.json and the processor's files
    into `target`.

    Raises:
        BuildError: there is no tokenizer, none that can be written as tokenizer.json, or one of another model.
    """
    if not (source / "tokenizer.json").is_file():
        made = python_code.make(source)
        if made is not None:
            _write_made(made, source, target)
        else:
            _make_fast(source, target, trust_remote_code=trust_remote_code)
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and not (target / name).exists():
            place(source / name, target / name)
    place_processor(source, target)
    beyond = check_tokenizer(target, source, read_checkpoint(source).vocab_size)
    if beyond:
        named = ", ".join(beyond[:5]) + (f" and {len(beyond) - 5} more" if len(beyond) > 5 else "")
        report(f"the tokenizer has tokens that the model has not: {named}; prompts with them are refused")
    templates = source / "additional_chat_templates"
    if templates.is_dir() and not (target / templates.name).exists():
        shutil.copytree(templates, target / templates.name)


def report_template(folder: Path, report: Callable[[str], None]) -> None:
    """Say whether the chat template of a placed tokenizer renders nothing: the engine is built, for completions."""
    try:
        found = rendering.problem(load_tokenizer(folder), takes_images=has_processor(folder))
    except Exception as error:  # what transformers raises for files that it cannot read differs from class to class
        report(f"the tokenizer cannot be loaded: {first_line(error)}")
        return
    if found is not None:
        report(f"completions work, conversations are refused (501), as not even one short message can be had: {found}")


def _write_made(made: python_code.Made, source: Path, target: Path) -> None:
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
