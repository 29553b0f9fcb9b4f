"""Images of an embedded engine: whether its prompts may hold some, by the checkpoint and the other options."""

from __future__ import annotations

from openai_bls.builder.checkpoint.checkpoint import Checkpoint
from openai_bls.builder.checkpoint.kind import causal_lm, quantized, takes_images
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.images import asked_for, granted, problem_of_files, problem_of_options
from openai_bls.builder.recipe import Report
from openai_bls.core.manifest import BuildError, EngineLoadError
from openai_bls_transformers.recipe.engine_build import EmbeddedOptions

TEXT_ALONE = "--max-images 0 serves its text alone"


def max_images(options: BuildOptions, checkpoint: Checkpoint, report: Report) -> int:
    """Images that a prompt may hold; 0 if the model takes text alone.

    Raises:
        BuildError: images are asked for and cannot be had, or the model cannot be served without them.
    """
    asked = asked_for(options)
    if not takes_images(checkpoint.facts):
        if asked:
            raise BuildError(f"--max-images {asked}: {options.model} is no model that takes images")
        return 0
    if asked == 0:
        return 0
    problem = _problem(options, checkpoint)
    if images := granted(options, problem):
        return images
    assert problem is not None
    refuse_without_text(checkpoint, problem, trust_remote_code=options.trust_remote_code)
    report(f"images are refused: {problem}")
    return 0


def refuse_without_text(checkpoint: Checkpoint, problem: str, *, trust_remote_code: bool) -> None:
    """Raise `BuildError` with `problem` if the model cannot be served without images either."""
    try:
        causal_lm(checkpoint, trust_remote_code=trust_remote_code)
    except EngineLoadError:
        raise
    except BuildError as error:
        raise BuildError(f"{error}; with images it is not served either: {problem}") from None


def _problem(options: BuildOptions, checkpoint: Checkpoint) -> str | None:
    """Reason why an engine with these options has no images; None if there is none."""
    if problem := problem_of_options(options):
        return problem
    if options.own_as(EmbeddedOptions).quant or quantized(checkpoint):
        return "not with quantized weights"
    return problem_of_files(checkpoint.folder)
