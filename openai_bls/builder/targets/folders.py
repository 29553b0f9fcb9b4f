"""Folders of an engine in the model repository, and what both targets do with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from openai_bls.core.manifest import ASIDE, BuildError
from openai_bls.triton_models.repository.engines import ENGINE, PREPROCESSING

OPENAI_BLS = "openai_bls"
# The engine needs it for grammars, the others for text.
TOKENIZER_MODELS = (ENGINE, PREPROCESSING, "postprocessing", OPENAI_BLS)
# Folders of an engine's files; only the first is always there.
FOLDERS = ("checkpoint", "engine", "lora")


class Prepared(NamedTuple):
    """Empty folders to build into. All but `checkpoint` are left out of the engine where they stay empty."""

    checkpoint: Path
    engine: Path
    lora: Path
    work: Path
    """Scratch space; removed at the end."""
    tokenizers: list[Path]

    def make(self) -> Prepared:
        """Make the folders."""
        for folder in (*self[:-1], *self.tokenizers):
            folder.mkdir(parents=True)
        return self


def version_dir(repository: Path, model: str) -> Path:
    """The version folder of `model`, made if need be.

    Raises:
        BuildError: `repository` has no such model.
    """
    if not (repository / model).is_dir():
        raise BuildError(f"{repository} is not the model repository: it has no folder {model}")
    folder = repository / model / "1"
    folder.mkdir(exist_ok=True)
    return folder


def remove_if_empty(folder: Path) -> None:
    """Remove `folder` unless it holds something."""
    if not any(folder.iterdir()):
        folder.rmdir()


def write_configs(scratch: Path, texts: Mapping[Path, str]) -> None:
    """Write config.pbtxt files, each of them in one step; `scratch` is a folder of the same file system."""
    for path, text in texts.items():
        aside = scratch / f"{ASIDE}{path.parent.name}-{path.name}"
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
