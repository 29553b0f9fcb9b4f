"""What a build needs of an engine's place in the model repository; `places` has the two that there are."""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from openai_bls.core.manifest import EngineLoadError, Manifest, short


class Prepared(NamedTuple):
    """Empty folders to build into. `engine` and `lora` are left out of the engine where they stay empty."""

    checkpoint: Path
    engine: Path
    lora: Path
    work: Path
    """For what is in hand; removed at the end."""
    tokenizers: list[Path]


class Place(Protocol):
    """An engine's place. Until `commit` the engine in it stays whole."""

    model: str
    """Name of the Triton model that holds the engine."""
    version_dir: Path
    """Where its manifest lies."""
    tokenizers: list[Path]
    """Folders that hold its tokenizer."""
    generated: dict[str, str]
    """Text of the files that are neither the checkpoint's nor the manifest nor in `configs`, by their path."""
    configs: dict[str, Path]
    """Name of a model → its config.pbtxt, of the models that are configured for the engine."""

    def recover(self) -> None:
        """Put right what a build that was killed has left half done.

        Raises:
            EngineLoadError: what lies here is not an engine of ours.
        """
        ...

    def begin(self) -> Prepared:
        """Make the folders to build into."""
        ...

    def commit(self, manifest: Manifest, configs: Mapping[str, str]) -> None:
        """Put what was built into its place, and the manifest with it.

        Args:
            manifest: of what was built.
            configs: name of a model → the text of its config.pbtxt; one of the default engine's models that is left out
                keeps what it has.
        """
        ...

    def configure(self, configs: Mapping[str, str]) -> None:
        """Write config.pbtxt files, see `commit`, of the engine that is in its place."""
        ...

    def clean(self) -> None:
        """Remove what a build has left; after a failed one the last engine is in its place again."""
        ...


@contextmanager
def sole_build(place: Place) -> Iterator[None]:
    """Keep other builds of this machine out of `place`: each begins by removing what it takes for a killed one's.

    Raises:
        EngineLoadError: one is at work there.
    """
    # Linux's abstract socket names are free again when their process ends in whatever way, and leave no file.
    digest = hashlib.sha256(str(place.version_dir.resolve()).encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0openai_bls-build-{digest}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise EngineLoadError(
                f"another build is at work in {short(place.version_dir)}: wait until it ends"
            ) from None
        yield
