"""Tokenizer of a checkpoint put into the engine, as a tokenizer.json in any case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.checkpoint.files import TOKENIZER_FILES, check_tokenizer
from openai_bls.builder.placing.files import place
from openai_bls.builder.placing.tokenizer import save, write_json
from openai_bls.builder.tokenizer import python_code
from openai_bls.builder.tokenizer.comparison import difference, lost_text
from openai_bls.builder.tokenizer.contradictions import contradictions
from openai_bls.builder.tokenizer.original import load_original
from openai_bls.builder.tokenizer.processor import place_processor
from openai_bls.builder.tokenizer.samples import SAMPLES
from openai_bls.core.checkpoint import generation_config, text_config
from openai_bls.core.manifest import BuildError, first_line
from openai_bls.engines.images.processor import has_processor
from openai_bls.output import detect
from openai_bls.triton_models.preprocessing import rendering
from openai_bls.triton_models.preprocessing.prompt import load_tokenizer

_SAVED = ("special_tokens_map.json", "added_tokens.json", "chat_template.json")
"""Files whose content is in tokenizer.json, tokenizer_config.json and chat_template.jinja once these are saved."""


def place_tokenizer(
    checkpoint: Checkpoint, target: Path, report: Callable[[str], None], *, trust_remote_code: bool
) -> Any:
    """Put the tokenizer's files, with a tokenizer.json in any case, generation_config.json and the processor's files
    into `target`; returns the tokenizer of transformers that they make.

    Raises:
        BuildError: there is no tokenizer, none that can be written as tokenizer.json, one of another model, or one that
            makes other token ids from `target` than from the checkpoint.
    """
    source = checkpoint.folder
    made = python_code.make(source) if not (source / "tokenizer.json").is_file() else None
    original = None
    if made is not None:
        _write_made(made, checkpoint, target)
    else:
        original = load_original(source, trust_remote_code=trust_remote_code)
        _write_original(original, source, target)
    for name in TOKENIZER_FILES if original is None else [name for name in TOKENIZER_FILES if name not in _SAVED]:
        if (source / name).is_file() and not (target / name).exists():
            place(source / name, target / name)
    place_processor(source, target)
    beyond = check_tokenizer(target, source, checkpoint.facts.vocab_size)
    if beyond:
        named = ", ".join(beyond[:5]) + (f" and {len(beyond) - 5} more" if len(beyond) > 5 else "")
        report(f"the tokenizer has tokens that the model has not: {named}; prompts with them are refused")
    try:
        placed = load_tokenizer(target)
    except Exception as error:  # what transformers raises for files that it cannot read differs from class to class
        raise BuildError(f"the tokenizer of {source} cannot be loaded: {first_line(error)}") from None
    if original is not None and (found := difference(original, placed)):
        raise BuildError(
            f"the tokenizer of {source} makes other token ids from its tokenizer.json than as "
            f"{type(original).__name__}, which transformers takes it for: {found}"
        )
    if original is not None and (told := contradictions(source, original)):
        report(
            f"the tokenizer's files contradict each other: {told[0]}"
            + (f" (and {len(told) - 1} more)" if len(told) > 1 else "")
        )
    if lost := lost_text(placed):
        text, back = lost[0]
        more = f" (and {len(lost) - 1} more of {len(SAMPLES)} texts)" if len(lost) > 1 else ""
        report(f"the tokenizer does not hold every text: {text!r} comes back as {back!r}{more}")
    _add_end_token(placed, checkpoint, target, report)
    return placed


def report_template(tokenizer: Any, folder: Path, report: Callable[[str], None]) -> None:
    """Say whether the chat template of a tokenizer placed in `folder` renders nothing, as the engine is built for
    completions, or has thoughts or calls in a form that is not known."""
    found = rendering.problem(tokenizer, takes_images=has_processor(folder))
    if found is not None:
        report(f"completions work, conversations are refused (501), as not even one short message can be had: {found}")
    for warning in detect.detect(detect.chat_template(folder)).warnings:
        report(warning)


def _write_made(made: python_code.Made, checkpoint: Checkpoint, target: Path) -> None:
    """Files of a tokenizer that stands for one in Python; what the checkpoint says itself is not in them."""
    source = checkpoint.folder
    made.tokenizer.save(str(target / "tokenizer.json"))
    write_json(target / "tokenizer_config.json", made.config)
    has_template = "chat_template" in made.config or (source / "chat_template.jinja").is_file()
    if made.chat_template and not has_template:
        (target / "chat_template.jinja").write_text(made.chat_template, encoding="utf-8")
    if made.end_tokens:
        generation = generation_config(source)
        ends = _end_tokens(generation, checkpoint)
        generation["eos_token_id"] = list(dict.fromkeys([*ends, *made.end_tokens]))
        write_json(target / "generation_config.json", generation)


def _write_original(original: Any, source: Path, target: Path) -> None:
    try:
        found, reason = save(original, target), "it is saved without one"
    except Exception as error:  # the class may be the checkpoint's
        found, reason = False, first_line(error)
    if not found and (source / "tokenizer.json").is_file():
        place(source / "tokenizer.json", target / "tokenizer.json")
    elif not found:
        raise BuildError(
            f"{source} has no tokenizer.json, and its tokenizer, a {type(original).__name__}, cannot be written as one "
            f"({reason}): text is tokenized and detokenized from tokenizer.json alone, so put one beside the "
            "checkpoint that makes the same token ids"
        )


def _add_end_token(tokenizer: Any, checkpoint: Checkpoint, target: Path, report: Callable[[str], None]) -> None:
    """Let the tokenizer's own end token end answers as well: fine-tunes often name it there alone."""
    end = tokenizer.eos_token_id
    path = target / "generation_config.json"
    generation = generation_config(target)
    ends = _end_tokens(generation, checkpoint)
    if end is None or end in ends or not 0 <= end < checkpoint.facts.vocab_size:
        return
    report(f"the tokenizer's end token {tokenizer.eos_token} ({end}) ends answers too: the configuration names {ends}")
    path.unlink(missing_ok=True)  # it may be a link to the checkpoint's
    write_json(path, {**generation, "eos_token_id": [*ends, end]})


def _end_tokens(generation: dict[str, Any], checkpoint: Checkpoint) -> list[int]:
    """End tokens of a generation_config.json, else of the checkpoint's config.json."""
    told = generation.get("eos_token_id", text_config(checkpoint.config).get("eos_token_id"))
    if told is None:
        return []
    return list(told) if isinstance(told, list) else [told]
