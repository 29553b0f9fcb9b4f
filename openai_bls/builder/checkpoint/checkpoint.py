"""Checkpoint that an engine is built from: its folder and what its small files say, checked and read once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from openai_bls.builder.checkpoint.config import require_config, with_modelopt
from openai_bls.builder.checkpoint.files import (
    PYTORCH,
    SAFETENSORS,
    check_small_files,
    named_weight_files,
    read_headers,
    weight_files,
)
from openai_bls.builder.checkpoint.numbers import require_counts, require_end_tokens
from openai_bls.core.checkpoint import CheckpointFacts, Tensors, facts_of, generation_config, read_json
from openai_bls.core.manifest import BuildError


class Weights(NamedTuple):
    """Files with the weights of a checkpoint."""

    names: list[str]
    """Names of the files, with that of their index."""
    tensors: Tensors
    """Tensors of safetensors files; {} for PyTorch's own files."""


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint that an engine is built from."""

    folder: Path
    config: dict[str, Any]
    """config.json, with ModelOpt's description as `quantization_config`. Shared: nobody may change it."""
    facts: CheckpointFacts

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """Checkpoint in `folder`, whose files are not checked.

        Raises:
            EngineLoadError: no readable config.json with a vocabulary size.
        """
        config = read_json(folder / "config.json")
        return cls(folder, with_modelopt(config, folder), facts_of(folder, config, generation_config(folder)))

    @functools.cached_property
    def weights(self) -> Weights:
        """Files with the weights, and their tensors.

        Raises:
            BuildError: there are none, or some are missing, cut off or damaged.
        """
        folder, told = self.folder, self.config.get("transformers_weights")
        if isinstance(told, str):
            names = named_weight_files(folder, told)
        else:
            names = weight_files(folder) or weight_files(folder, PYTORCH)
        if not names:
            others = sorted(
                path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth")
            )
            listed = f"; {', '.join(others[:3])} is none of these" if others else ""
            raise BuildError(
                f"{folder} has no weights ({SAFETENSORS}, {PYTORCH}, or their parts with an index){listed}"
            )
        return Weights(names, read_headers(folder, names))


def open_checkpoint(folder: Path, report: Callable[[str], None], *, force: bool) -> Checkpoint:
    """Checkpoint in `folder`, whose small files are checked.

    Args:
        folder: folder with config.json.
        report: called with a line about what is strange and taken.
        force: take a checkpoint without an end token.

    Raises:
        BuildError: a file is not what its name says, or config.json has values that no model has.
        EngineLoadError: no readable config.json with a vocabulary size.
    """
    check_small_files(folder)
    config, generation = read_json(folder / "config.json"), generation_config(folder)
    require_counts(folder, config)
    require_config(folder, config)
    facts = facts_of(folder, config, generation)
    require_end_tokens(folder, config, generation, facts, report, force=force)
    return Checkpoint(folder, with_modelopt(config, folder), facts)
