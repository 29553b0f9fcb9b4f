"""Images in TensorRT-LLM's PyTorch flow: which architectures read them, and a prompt with images in its terms.

From its public sources: the input processors that its model files register, and the matrix of multimodal models in
docs/source/models/supported-models.md. None of it was run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_bls.core.media import MediaPrompt
from openai_bls_tensorrt_llm.installed.interface import Flow, Output, Version

_HASHED = Version(1, 2)
"""First release that tells the images of cached prompts apart, by a hash in the key of a block."""
_LATER = Version(1, 3)
_GEMMA4 = Version(1, 3, 0, 25)
"""First candidate that has it for certain: its sources are in main before."""
_NEWEST = Version(1, 4)

ARCHITECTURES: dict[str, Version] = {
    **dict.fromkeys(
        (
            "Gemma3ForConditionalGeneration",
            "Llama4ForConditionalGeneration",
            "LlavaNextForConditionalGeneration",
            "Mistral3ForConditionalGeneration",
            "Qwen2VLForConditionalGeneration",
            "Qwen2_5_VLForConditionalGeneration",
        ),
        _HASHED,
    ),
    "Qwen3VLForConditionalGeneration": _LATER,
    "Qwen3VLMoeForConditionalGeneration": _LATER,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    **dict.fromkeys(
        (
            "Gemma4UnifiedForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
        ),
        _NEWEST,
    ),
}
"""Architecture that takes images, with a processor of transformers' own → first version that is used for them.

Nemotron Nano VL and Omni are none of them: their processor is code of the checkpoint, and TensorRT-LLM sizes their
images by what the prompt leaves free.
"""

WHOLE_PROMPTS = (
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
)
"""Architectures whose image tokens see each other: a prompt with images is neither cut nor begun from a cache."""


def problem(architecture: str, flow: Flow, version: Version) -> str | None:
    """Reason why a model has no images; None if there is none.

    Args:
        architecture: the first of config.json's `architectures`.
        flow: flow of the engine.
        version: version of TensorRT-LLM.
    """
    since = ARCHITECTURES.get(architecture)
    if since is None:
        return f"images with TensorRT-LLM are for {', '.join(ARCHITECTURES)}, not for {architecture}"
    if flow != "pytorch":
        return "images are for --flow pytorch: engines need an engine of the vision tower beside them"
    if version < since:
        return f"images of {architecture} need TensorRT-LLM {since} or later, and this is {version}"
    return None


def inputs(media: MediaPrompt) -> dict[str, Any]:
    """`TokensPrompt` of `LLM.generate_async`.

    Its ids are those before the images are expanded. TensorRT-LLM expands them itself, up to 1.2 by way of their text,
    and adds no special tokens to ids.
    """
    # In TensorRT-LLM's environment, which has it for its own processors.
    from PIL import Image

    images = [Image.frombytes("RGB", (one.width, one.height), one.pixels) for one in media.images]
    return {"prompt_token_ids": list(media.token_ids), "multi_modal_data": {"image": images}}


def difference(counted: Sequence[int], output: Output) -> str:
    """How a prompt as TensorRT-LLM reads it differs from that which `preprocessing` counted; empty if it does not.

    Their lengths are compared: some models have ids beyond the vocabulary in the place of an image.
    """
    read = len(output.prompt_token_ids)
    if read == len(counted):
        return ""
    return (
        f"TensorRT-LLM's processor makes {read} tokens of this prompt and images, and the model's own in preprocessing "
        f"{len(counted)}: they are not of the same version"
    )
