"""Images of a vLLM engine: whether its prompts may hold some."""

from __future__ import annotations

from pathlib import Path

from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.images import asked_for, granted_or_said, problem_of_files, problem_of_options
from openai_bls.builder.recipe import Report
from openai_bls_vllm.survey.interpreter import Survey


def max_images(options: BuildOptions, source: Path, survey: Survey, report: Report) -> int:
    """Images that a prompt may hold; 0 if the model takes text alone.

    Raises:
        BuildError: images are asked for and cannot be had.
    """
    asked = asked_for(options)
    if asked == 0 or (asked is None and not survey.takes_images):
        return 0
    return granted_or_said(options, _problem(options, source, survey), report)


def _problem(options: BuildOptions, source: Path, survey: Survey) -> str | None:
    """Reason why an engine with these options has no images; None if there is none."""
    if not survey.takes_images:
        return f"vLLM {survey.version} takes no images for {options.model}"
    return problem_of_options(options) or problem_of_files(source)
