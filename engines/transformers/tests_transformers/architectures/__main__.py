"""Command that compares all architectures, or those named, with transformers' `generate`; `--write` puts the outcomes
into engines/transformers/docs/models.md."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import transformers

from tests.unit.builder.repositories import make_repository
from tests_transformers.architectures import page, vision_comparison, vision_table
from tests_transformers.architectures.checkpoint import make_checkpoint
from tests_transformers.architectures.comparison import Result, compare
from tests_transformers.architectures.table import CASES
from tests_transformers.architectures.vision_checkpoint import make_vision_checkpoint


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 if an architecture is neither exact nor refused at the build."""
    names = [argument for argument in arguments if argument != "--write"] or [*CASES, *vision_table.CASES]
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "model_repository")
        for name in names:
            start = time.monotonic()
            results[name] = result = _compared(name, Path(folder) / name.replace(" ", "-"), repository)
            print(f"{name} | {result.outcome} | {result.reason} | {time.monotonic() - start:.1f} s", flush=True)  # noqa: T201
    if "--write" in arguments:
        for cases, header in ((CASES, page.TEXT), (vision_table.CASES, page.IMAGES)):
            page.write({name: result for name, result in results.items() if name in cases}, cases, header)
    return any(result.outcome not in page.OUTCOMES for result in results.values())


def _compared(name: str, checkpoint: Path, repository: Path) -> Result:
    if name in CASES:
        case = CASES[name]
        make_checkpoint(checkpoint, case.model_type, case.changes, case.seed)
        return compare(checkpoint, repository)
    vision = vision_table.CASES[name]
    make_vision_checkpoint(checkpoint, name, vision)
    return vision_comparison.compare(checkpoint, repository, text=not vision.needs_image)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
