"""Files of a checkpoint put into the engine: linked or copied."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

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
