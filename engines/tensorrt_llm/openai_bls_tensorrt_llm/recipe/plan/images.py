"""Images of an engine: whether its prompts may hold some."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from openai_bls.builder.checkpoint.config import first_architecture
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.images import asked_for, granted, problem_of_files, problem_of_options
from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.installed.images import ARCHITECTURES, problem
from openai_bls_tensorrt_llm.installed.interface import Flow, Version
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions


class Images(NamedTuple):
    """Images of a plan."""

    most: int = 0
    """Images that a prompt may hold; 0 if the engine takes text alone."""
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def images_of(
    options: BuildOptions, config: dict[str, Any], folder: Path | None, flow: Flow, version: Version, *, drafts: bool
) -> Images:
    """Images of an engine that is planned.

    Args:
        options: options of the build.
        config: contents of the checkpoint's config.json.
        folder: folder of the checkpoint, where it is on this machine.
        flow: flow of the engine.
        version: version of TensorRT-LLM.
        drafts: whether it decodes speculatively.
    """
    name = first_architecture(config)
    try:
        asked = asked_for(options)
        if asked == 0 or (asked is None and name not in ARCHITECTURES):
            return Images()
        found = problem(name, flow, version) or problem_of_options(options) or _of_others(options, drafts=drafts)
        if found is None and folder is not None:
            found = problem_of_files(folder)
        if most := granted(options, found):
            return Images(most, notes=(f"takes images, up to {most} in a prompt; this has not been run anywhere",))
    except BuildError as error:
        return Images(refusals=(str(error),))
    return Images(notes=(f"images are refused: {found}",))


def _of_others(options: BuildOptions, *, drafts: bool) -> str | None:
    if drafts:
        return "not with a speculative_config"
    if options.own_as(TensorRtLlmOptions).backend == "cpp":
        return "not with --backend cpp"
    return None
