"""Recipe of an engine: what each kind of engine decides about its build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from openai_bls.builder.options.build import DEFAULT_MODEL_LEN, BuildOptions
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


def max_model_len(options: BuildOptions, facts: CheckpointFacts) -> int:
    """Longest sequence in tokens that is asked for, or that the model was made for.

    Raises:
        BuildError: the model was not made for that, or the KV cache does not hold it.
    """
    wanted, most, held = options.max_model_len, facts.max_position_embeddings, options.max_tokens_in_kv_cache
    if wanted is not None and (wanted < 1 or (most is not None and wanted > most)):
        raise BuildError(f"--max-seq-len {wanted} is outside what the model was made for (1 to {most})")
    longest = wanted or most or DEFAULT_MODEL_LEN
    if held and held < longest:
        raise BuildError(
            f"--max-tokens-in-kv-cache {held} does not hold one sequence of {longest} tokens: raise it, or give a "
            "smaller --max-seq-len"
        )
    return longest
