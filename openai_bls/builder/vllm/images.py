"""Images of a vLLM engine: whether its prompts may hold some."""

from __future__ import annotations

from pathlib import Path

from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.images import asked_for, granted, problem_of_files, problem_of_options
from openai_bls.builder.recipe import Report
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.vision_processor import VisionProcessor
from openai_bls.engines.vllm.survey.interpreter import Survey


def max_images(options: BuildOptions, source: Path, survey: Survey, report: Report) -> int:
    """Images that a prompt may hold; 0 if the model takes text alone.

    Raises:
        BuildError: images are asked for and cannot be had.
    """
    asked = asked_for(options)
    if asked == 0 or (asked is None and not survey.takes_images):
        return 0
    return _granted(options, _problem(options, source, survey), report)


def with_processor(images: int, options: BuildOptions, tokenizer: Path, report: Report) -> int:
    """`images`, if preprocessing can load the processor in the prepared folder `tokenizer`; else 0.

    Raises:
        BuildError: it cannot, and images are asked for.
    """
    if not images:
        return 0
    try:
        VisionProcessor(tokenizer)
    except EngineLoadError as error:
        return _granted(options, str(error), report)
    return images


def _granted(options: BuildOptions, problem: str | None, report: Report) -> int:
    images = granted(options, problem)
    if not images:
        report(f"images are refused: {problem}")
    return images


def _problem(options: BuildOptions, source: Path, survey: Survey) -> str | None:
    """Reason why an engine with these options has no images; None if there is none."""
    if not survey.takes_images:
        return f"vLLM {survey.version} takes no images for {options.model}"
    return problem_of_options(options) or problem_of_files(source)
