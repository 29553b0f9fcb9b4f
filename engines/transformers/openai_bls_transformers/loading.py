"""Loader of the embedded engine; looks at the installed packages before anything imports them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from openai_bls.core import installing
from openai_bls.core.engine import Engine, StepListener
from openai_bls.core.manifest import EngineLoadError, Manifest
from openai_bls.core.settings import EngineSettings
from openai_bls_transformers.options import EngineOptions, with_settings

TESTED_TRANSFORMERS = ((5, 17), (5, 25))
"""Versions of transformers, the second excluded: its continuous-batching API moves from release to release."""


def load(
    version_dir: Path,
    manifest: Manifest,
    settings: EngineSettings,
    on_step: StepListener,
    options: EngineOptions,
) -> Engine:
    """The embedded engine of `manifest`, loaded and ready.

    Raises:
        EngineLoadError: one sentence that says what is missing and what to do.
    """
    options = with_settings(options, settings)
    _check_packages(options)
    from openai_bls_transformers.engine.engine import TransformersEngine

    return TransformersEngine(version_dir, manifest, options, on_step)


def _check_packages(options: EngineOptions) -> None:
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise EngineLoadError(
                f"the engine needs the package {package}, which this Python does not have: "
                + installing.with_engine("transformers")
            )
    found = importlib.metadata.version("transformers")
    low, high = TESTED_TRANSFORMERS
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if not low <= numbers < high and not options.allow_untested_versions:
        wanted = f"from {low[0]}.{low[1]} and below {high[0]}.{high[1]}"
        raise EngineLoadError(
            f"transformers {found} is outside the range this release was tested with ({wanted}): "
            + installing.with_engine("transformers")
        )
