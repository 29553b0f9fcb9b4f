"""Image processors of transformers in small: the files of each, the tokens for images, and a tiny tokenizer."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from openai_bls.core.media import Image
from tests.unit.core_support import tiny_tokenizer

IMAGE = "<image>"
"""Placeholder of most; it is a token of each tiny tokenizer."""
TOKENS = (
    *(IMAGE, "<video>", "<soft>", "<boi>", "<eoi>", "<audio>", "[IMG_BREAK]", "[IMG_END]", "<global-img>"),
    *("<fake_token_around_image>", "<end_of_utterance>", "<|vision_start|>", "<|vision_end|>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)),
)
"""Tokens that the tiny tokenizer has beside text."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}PLACEHOLDER"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TILES = [[32, 64], [64, 32], [64, 64]]
"""Sizes of images that are cut into tiles."""

_SQUARE = {"size": {"height": 32, "width": 32}}
_SHORTEST = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
_QWEN_TOKENS = {"image_token": IMAGE, "video_token": "<video>"}
_QWEN_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
}


@dataclasses.dataclass(frozen=True)
class ProcessorCase:
    """A processor."""

    name: str
    """transformers' class of the processor."""
    images: Mapping[str, Any]
    """Contents of preprocessor_config.json."""
    tokens: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"image_token": IMAGE})
    """Tokens that the tokenizer knows by names, e.g. `image_token`."""
    of_processor: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Contents of processor_config.json."""
    placeholder: str = IMAGE
    """Text that stands for an image."""


PROCESSORS: dict[str, ProcessorCase] = {
    "qwen2_vl": ProcessorCase("Qwen2VLProcessor", _QWEN_IMAGES, tokens=_QWEN_TOKENS),
    "qwen2_5_vl": ProcessorCase("Qwen2_5_VLProcessor", _QWEN_IMAGES, tokens=_QWEN_TOKENS),
    "qwen3_vl": ProcessorCase(
        "Qwen3VLProcessor",
        _QWEN_IMAGES,
        tokens=_QWEN_TOKENS | {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"},
    ),
    "qwen3_5": ProcessorCase(
        "Qwen3VLProcessor",
        _QWEN_IMAGES,
        tokens=_QWEN_TOKENS | {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"},
    ),
    "glm4v": ProcessorCase(
        "Glm4vProcessor",
        _QWEN_IMAGES | {"image_processor_type": "Glm4vImageProcessor"},
        tokens=_QWEN_TOKENS,
    ),
    "gemma3": ProcessorCase(
        "Gemma3Processor",
        {"image_processor_type": "Gemma3ImageProcessor", **_SQUARE},
        tokens={"image_token": "<soft>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
        of_processor={"image_seq_length": 4},
        placeholder="<boi>",
    ),
    "gemma4": ProcessorCase(
        "Gemma4Processor",
        {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "max_soft_tokens": 70},
        tokens={"image_token": IMAGE, "boi_token": "<boi>", "eoi_token": "<eoi>", "audio_token": "<audio>"}
        | {"boa_token": "<boi>", "eoa_token": "<eoi>"},
    ),
    "mistral3": ProcessorCase(
        "PixtralProcessor",
        {"image_processor_type": "PixtralImageProcessor", "patch_size": 8, "size": {"longest_edge": 64}},
        of_processor={"patch_size": 8, "spatial_merge_size": 2, "image_token": IMAGE},
    ),
    "llava": ProcessorCase(
        "LlavaProcessor",
        {"image_processor_type": "CLIPImageProcessor", **_SHORTEST},
        of_processor={
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "llava (Pixtral)": ProcessorCase(
        "PixtralProcessor",
        {"image_processor_type": "PixtralImageProcessor", "patch_size": 8, "size": {"longest_edge": 64}},
        of_processor={"patch_size": 8, "image_token": IMAGE},
    ),
    "llava_next": ProcessorCase(
        "LlavaNextProcessor",
        {"image_processor_type": "LlavaNextImageProcessor", **_SHORTEST, "image_grid_pinpoints": TILES},
        of_processor={
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "llava_onevision": ProcessorCase(
        "LlavaOnevisionProcessor",
        {"image_processor_type": "LlavaOnevisionImageProcessor", **_SQUARE, "image_grid_pinpoints": TILES},
        tokens={"image_token": IMAGE, "video_token": "<video>"},
        of_processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
        | {"vision_aspect_ratio": "anyres_max_2"},
    ),
    "idefics2": ProcessorCase(
        "Idefics2Processor",
        {"image_processor_type": "Idefics2ImageProcessor", "size": {"shortest_edge": 16, "longest_edge": 32}}
        | {"do_image_splitting": False},
        tokens={"image_token": IMAGE, "image_boundary_token": "<fake_token_around_image>"},
        of_processor={"image_seq_len": 4},
    ),
    "idefics3": ProcessorCase(
        "Idefics3Processor",
        {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 64}}
        | {"max_image_size": {"longest_edge": 32}},
        of_processor={"image_seq_len": 4},
    ),
    "smolvlm": ProcessorCase(
        "SmolVLMProcessor",
        {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 64}}
        | {"max_image_size": {"longest_edge": 32}},
        tokens={
            "image_token": IMAGE,
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
        }
        | {"end_of_utterance_token": "<end_of_utterance>"},
        of_processor={"image_seq_len": 4},
    ),
    "internvl": ProcessorCase(
        "InternVLProcessor",
        {"image_processor_type": "GotOcr2ImageProcessor", **_SQUARE, "crop_to_patches": True}
        | {"min_patches": 1, "max_patches": 4},
        tokens={"start_image_token": "<boi>", "end_image_token": "<eoi>", "context_image_token": IMAGE}
        | {"video_token": "<video>"},
        of_processor={"image_seq_length": 4},
    ),
    "aya_vision": ProcessorCase(
        "AyaVisionProcessor",
        {"image_processor_type": "GotOcr2ImageProcessor", **_SQUARE, "crop_to_patches": True}
        | {"min_patches": 1, "max_patches": 4},
        of_processor={"patch_size": 8, "img_size": 32, "downsample_factor": 2, "image_token": IMAGE}
        | {"start_of_img_token": "<boi>", "end_of_img_token": "<eoi>", "img_patch_token": "<soft>"},
    ),
    "paligemma": ProcessorCase(
        "PaliGemmaProcessor", {"image_processor_type": "SiglipImageProcessor", **_SQUARE, "image_seq_length": 16}
    ),
}
"""By the type of a model that has it, and what is special in brackets."""


def write_processor(folder: Path, case: ProcessorCase, chat_template: str = CHAT_TEMPLATE) -> Any:
    """Files of a tokenizer and of the processor of `case`; returns the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    # A copy: all tests of a process share the other.
    backend = Tokenizer.from_str(tiny_tokenizer().to_str())
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=dict(case.tokens),
        chat_template=chat_template.replace("PLACEHOLDER", case.placeholder),
    )
    tokenizer.save_pretrained(folder)
    files = {
        "preprocessor_config.json": {**case.images, "processor_class": case.name},
        "processor_config.json": {**case.of_processor, "processor_class": case.name},
    }
    for name, contents in files.items():
        (folder / name).write_text(json.dumps(contents), encoding="utf-8")
    return tokenizer


def picture(width: int, height: int, seed: int) -> Image:
    """Blocks of random colours, so that every patch says something."""
    generator = random.Random(seed)
    colours = [[generator.randbytes(3) for _ in range(0, width, 8)] for _ in range(0, height, 8)]
    pixels = b"".join(colours[y // 8][x // 8] for y in range(height) for x in range(width))
    return Image(width, height, pixels, f"{seed}-{width}-{height}")
