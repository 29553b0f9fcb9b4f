"""Images of a build with any engine: how many are asked for, what rules them out, and how many are granted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.manifest import BuildError, EngineLoadError
from openai_bls.engines.images.processor import VisionProcessor, has_processor

DEFAULT_MAX_IMAGES = 8
"""Images of a prompt, where a model takes any."""


def asked_for(options: BuildOptions) -> int | None:
    """Value of --max-images; None if it was not given.

    Raises:
        BuildError: it is below 0.
    """
    if options.max_images is not None and options.max_images < 0:
        raise BuildError(f"--max-images {options.max_images}: 0 or more is needed")
    return options.max_images


def granted(options: BuildOptions, problem: str | None) -> int:
    """Images that a prompt of a model that takes some may hold; 0 if there is a `problem` and nobody asked for any.

    Raises:
        BuildError: there is a problem, and images are asked for.
    """
    if problem is None:
        return options.max_images or DEFAULT_MAX_IMAGES
    if options.max_images:
        raise BuildError(f"--max-images {options.max_images}: {problem}")
    return 0


def granted_or_said(options: BuildOptions, problem: str | None, report: Callable[[str], None]) -> int:
    """The same as `granted`; a problem that refuses nothing is said."""
    images = granted(options, problem)
    if not images:
        report(f"images are refused: {problem}")
    return images


def with_processor(images: int, options: BuildOptions, tokenizer: Path, report: Callable[[str], None]) -> int:
    """`images`, if preprocessing can load the processor in the prepared folder `tokenizer`; else 0.

    Raises:
        BuildError: it cannot, and images are asked for.
    """
    if not images:
        return 0
    try:
        VisionProcessor(tokenizer)
    except EngineLoadError as error:
        return granted_or_said(options, str(error), report)
    return images


def problem_of_options(options: BuildOptions) -> str | None:
    """Option with which no engine has images; None if there is none."""
    if options.trust_remote_code:
        return "not with code that comes with the checkpoint (--trust-remote-code)"
    if options.lora.adapters or options.lora.max_loras:
        return "not with adapters (--lora-dir, --max-loras)"
    return None


def problem_of_files(source: Path) -> str | None:
    """Predicate about what the checkpoint in `source` lacks for images; None if it has all."""
    return None if has_processor(source) else f"{source} has no preprocessor_config.json or processor_config.json"
