"""Flow of an engine where none was asked for: by the version, the options that only one flow has, and the model."""

from __future__ import annotations

from collections.abc import Callable

from openai_bls.core.manifest import BuildError
from openai_bls_tensorrt_llm.installed.interface import Flow, Version
from openai_bls_tensorrt_llm.recipe.model import families
from openai_bls_tensorrt_llm.recipe.options import TensorRtLlmOptions, engine_only

PYTORCH_DEFAULT_SINCE = Version(1, 2)
_ABOUT = "--flow pytorch is the default from TensorRT-LLM 1.2 on"


def default_flow(own: TensorRtLlmOptions, version: Version, refusal: Callable[[Flow], str | None]) -> tuple[Flow, str]:
    """Flow, and a note on it for whoever builds.

    Args:
        own: the options.
        version: version of TensorRT-LLM.
        refusal: gives the reason why a flow refuses the model; None if the flow takes it.

    Raises:
        BuildError: an option is for engines, which this version does not build.
    """
    builds = (version.major, version.minor) < families.TENSORRT_FLOW_END
    by_default = version >= PYTORCH_DEFAULT_SINCE
    if only := engine_only(own):
        if not builds:
            raise BuildError(
                f"{only[0]} is for --flow tensorrt, which TensorRT-LLM {version} does not have any more: use an image "
                "with 1.2, or leave it out; --flow pytorch takes a checkpoint that is quantized already, as it is"
            )
        return "tensorrt", f"{_ABOUT}, and {only[0]} is for --flow tensorrt" if by_default else ""
    if own.extra_llm_api_options:
        return "pytorch", ""
    if not by_default:
        return "tensorrt", ""
    if builds and refusal("pytorch") and not refusal("tensorrt"):
        return "tensorrt", f"{_ABOUT}, and does not have this model: --flow tensorrt has it"
    return "pytorch", f"{_ABOUT}; --flow tensorrt builds an engine" if builds else ""
