"""Recipe of an engine: what each kind of engine decides about its build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from openai_bls.builder.options.build import DEFAULT_MODEL_LEN
from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.checkpoint import CheckpointFacts
from openai_bls.core.manifest import BuildError, FileRecord, Manifest

Report = Callable[[str], None]
"""Called with one line per stage."""


class Recipe(Protocol):
    """An engine to build, with everything about it decided."""

    manifest: Manifest
    """Manifest of the engine, without files."""
    configs: dict[str, str]
    """Name of a model → the text of its config.pbtxt."""
    key: str
    """Changes when the files that `fill` makes change, if the checkpoint's do not."""

    def fill(self, prepared: Prepared) -> dict[str, FileRecord]:
        """Fill all folders but the tokenizers', which are full; configuration files are there already.

        Returns:
            Sizes and hashes of the files in the folder `engine`, for the manifest.

        Raises:
            BuildError: it cannot be built; one sentence that says why.
        """
        ...


def max_model_len(wanted: int | None, facts: CheckpointFacts) -> int:
    """Longest sequence in tokens: `wanted`, or what the model was made for.

    Raises:
        BuildError: the model was not made for that.
    """
    most = facts.max_position_embeddings
    if wanted is None:
        return most or DEFAULT_MODEL_LEN
    if wanted < 1 or (most is not None and wanted > most):
        raise BuildError(f"--max-seq-len {wanted} is outside what the model was made for (1 to {most})")
    return wanted
