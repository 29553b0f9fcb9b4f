"""Recipe of an engine: what each kind of engine decides about its build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from openai_bls.builder.targets.folders import Prepared
from openai_bls.core.manifest import FileRecord, Manifest

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
