"""Prompts with images for self-tests: the same ones each time, of pictures that are drawn here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from openai_bls.core.engine_types import EngineInfo
from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.engines.images.processor import VisionProcessor

_SIZES = (((224, 160),), ((96, 128), (300, 64)))
"""Width and height of the images of each prompt, in pixels."""
_TEXT = " one two three."


class Prompt(NamedTuple):
    """A prompt with images."""

    token_ids: list[int]
    """Each image expanded."""
    media: MediaPrompt


def make(processor: VisionProcessor, info: EngineInfo, new_tokens: int) -> list[Prompt]:
    """One prompt with one image, and one with two where the model takes two and the context has room.

    Args:
        processor: processor of the model.
        info: facts of the engine.
        new_tokens: tokens that will be generated.

    Raises:
        EngineLoadError: the context has no room for an image.
    """
    found: list[Prompt] = []
    least = 0
    for sizes in _SIZES:
        if len(sizes) > info.max_images:
            break
        made = prompt(processor, sizes)
        least = least or len(made.token_ids)
        if len(made.token_ids) + new_tokens <= info.max_model_len:
            found.append(made)
    if not found:
        raise EngineLoadError(
            f"the context of {info.max_model_len} tokens has no room for a prompt with an image, which has {least} "
            "tokens: build with a longer --max-model-len, or with --max-images 0"
        )
    return found


def prompt(processor: VisionProcessor, sizes: Sequence[tuple[int, int]]) -> Prompt:
    """A prompt with images of these sizes, each width and height in pixels."""
    text = "".join(f"{number}: {processor.image_token}{_TEXT}" for number, _ in enumerate(sizes, 1))
    token_ids = processor.expand(text, sizes)
    images = tuple(picture(*size, seed) for seed, size in enumerate(sizes))
    return Prompt(token_ids, MediaPrompt(images, text, tuple(processor.plain(text)), processor.count(token_ids)))


def picture(width: int, height: int, seed: int) -> Image:
    """Bands and a gradient, which every patch sees a part of."""
    pixels = bytearray()
    for y in range(height):
        for x in range(width):
            band = (x // 16 + y // 24 + seed) % 3
            pixels += bytes(((x * 255 // width) if band else 30, (y * 255 // height) if band != 1 else 220, band * 90))
    return Image(width, height, bytes(pixels), hashlib.sha256(pixels).hexdigest())
