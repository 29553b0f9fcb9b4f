"""Command that compares all architectures, or those named, with transformers' `generate`; `--write` puts the outcomes
into docs/embedded-models.md."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import transformers

from tests.architectures import page
from tests.architectures.checkpoint import make_checkpoint
from tests.architectures.comparison import Result, compare
from tests.architectures.table import CASES
from tests.unit.builder.tensorrt_llm.build_support import make_repository


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 if an architecture is neither exact nor refused at the build."""
    names = [argument for argument in arguments if argument != "--write"] or list(CASES)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "model_repository")
        for name in names:
            case, start = CASES[name], time.monotonic()
            checkpoint = Path(folder) / name.replace(" ", "-")
            make_checkpoint(checkpoint, case.model_type, case.changes, case.seed)
            results[name] = result = compare(checkpoint, repository)
            print(f"{name} | {result.outcome} | {result.reason} | {time.monotonic() - start:.1f} s", flush=True)  # noqa: T201
    if "--write" in arguments:
        page.write(results)
    return any(result.outcome not in page.OUTCOMES for result in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
