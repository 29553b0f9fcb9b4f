"""Draft model of a build: its checkpoint, held against the model's vocabulary, and its files in the engine."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from openai_bls.builder.checkpoint.files import check_small_files
from openai_bls.builder.checkpoint.numbers import require_counts
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.placing.files import place
from openai_bls.builder.placing.weights import place_weights
from openai_bls.builder.recipe import Report
from openai_bls.builder.source.hub import find_source
from openai_bls.builder.targets.folders import Prepared
from openai_bls.builder.tokenizer.placing import place_tokenizer
from openai_bls.core.checkpoint import read_checkpoint
from openai_bls.core.manifest import BuildError

FOLDER = "draft"
"""Folder beside the manifest."""


def find_draft(options: BuildOptions, report: Report) -> Path | None:
    """The folder of the draft model's checkpoint, downloaded if need be; None if there is to be none.

    Raises:
        BuildError: it cannot be had.
    """
    if not options.draft_model:
        return None
    source = find_source(options.draft_model, report)
    if source.is_file():
        raise BuildError(f"--draft-model {options.draft_model}: a draft model is a directory or a hub id")
    check_small_files(source)
    require_counts(source)
    return source


def fingerprint(source: Path | None) -> list[tuple[str, int, int]]:
    """Changes when a file of the draft model does."""
    if source is None:
        return []
    files = sorted(path for path in source.iterdir() if path.is_file())
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def place_draft(source: Path, prepared: Prepared, options: BuildOptions, report: Report) -> None:
    """Put the draft model's files into the engine; the model's tokenizer is there already.

    Raises:
        BuildError: it is no causal language model, or one of another vocabulary.
    """
    trust = options.trust_remote_code
    report("draft model")
    tokenizer = prepared.work / "draft-tokenizer"
    tokenizer.mkdir()
    place_tokenizer(source, tokenizer, report, trust_remote_code=trust)
    _require_same_vocabulary(options.draft_model, prepared.tokenizers[0], tokenizer)
    place(source / "config.json", prepared.draft / "config.json")
    place_weights(source, prepared.draft, read_checkpoint(source), report, trust_remote_code=trust)


def _require_same_vocabulary(name: str, of_model: Path, of_draft: Path) -> None:
    wanted, found = (Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() for folder in (of_model, of_draft))
    for token, token_id in sorted(wanted.items(), key=lambda item: item[1]):
        if found.get(token) != token_id:
            there = f"{found[token]} there" if token in found else "not there"
            raise BuildError(
                f"--draft-model {name} has another vocabulary than the model: the token {token!r}, {token_id} in the "
                f"model's, is {there}; a draft model has to have the same tokenizer"
            )
