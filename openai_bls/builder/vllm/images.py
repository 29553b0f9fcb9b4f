"""Images of a vLLM engine: whether its prompts may hold some."""

from __future__ import annotations

from pathlib import Path

from openai_bls.builder.options.build import DEFAULT_MAX_IMAGES, BuildOptions
from openai_bls.builder.recipe import Report
from openai_bls.core.manifest import BuildError, EngineLoadError
from openai_bls.engines.vision_processor import VisionProcessor, has_processor
from openai_bls.engines.vllm.survey.interpreter import Survey


def max_images(options: BuildOptions, source: Path, survey: Survey, report: Report) -> int:
    """Images that a prompt may hold; 0 if the model takes text alone.

    Raises:
        BuildError: images are asked for and cannot be had.
    """
    asked = options.max_images
    if asked is not None and asked < 0:
        raise BuildError(f"--max-images {asked}: 0 or more is needed")
    if asked == 0 or (asked is None and not survey.takes_images):
        return 0
    return _granted(asked, _problem(options, source, survey), report)


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
        return _granted(options.max_images, str(error), report)
    return images


def _granted(asked: int | None, problem: str | None, report: Report) -> int:
    if problem is None:
        return asked or DEFAULT_MAX_IMAGES
    if asked:
        raise BuildError(f"--max-images {asked}: {problem}")
    report(f"images are refused: {problem}")
    return 0


def _problem(options: BuildOptions, source: Path, survey: Survey) -> str | None:
    """Reason why an engine with these options has no images; None if there is none."""
    if not survey.takes_images:
        return f"vLLM {survey.version} takes no images for {options.model}"
    if options.trust_remote_code:
        return "not with code that comes with the checkpoint (--trust-remote-code)"
    if options.lora.adapters or options.lora.max_loras:
        return "not with adapters (--lora-dir, --max-loras)"
    if not has_processor(source):
        return f"{source} has no preprocessor_config.json or processor_config.json"
    return None
