"""Vision-language architectures: a tiny configuration of each, with its image processor and the tokens for images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tests_transformers.architectures.table import FULL, LINEAR, SLIDING

IMAGE = "<image>"
"""Placeholder of most; it is a token of each tiny tokenizer."""
TOKENS = (
    *(IMAGE, "<video>", "<soft>", "<boi>", "<eoi>", "<audio>", "[IMG_BREAK]", "[IMG_END]", "<global-img>"),
    *("<fake_token_around_image>", "<end_of_utterance>", "<|vision_start|>", "<|vision_end|>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)),
)
"""Tokens that the tiny tokenizer has beside text."""

_CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 32,
}
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
_PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
    "image_size": 64,
    "patch_size": 8,
}
_SQUARE = {"size": {"height": 32, "width": 32}}
_SHORTEST = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
_QWEN_TOKENS = {"image_token": IMAGE, "video_token": "<video>"}
_QWEN_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
}
_QWEN_VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 8}
_TILES = [[32, 64], [64, 32], [64, 64]]


@dataclasses.dataclass(frozen=True)
class VisionCase:
    """A configuration and a processor."""

    text: str
    """Type of the language model."""
    processor: str
    """transformers' class of the processor."""
    images: Mapping[str, Any]
    """Contents of preprocessor_config.json."""
    vision: Mapping[str, Any]
    """Fields of the tower's configuration."""
    tokens: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"image_token": IMAGE})
    """Tokens that the tokenizer knows by names, e.g. `image_token`."""
    ids: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"image_token_id": IMAGE})
    """Fields of the configuration that are ids of tokens, with the tokens."""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further fields of the configuration."""
    text_changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the language model's configuration."""
    of_processor: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Contents of processor_config.json."""
    placeholder: str = IMAGE
    """Text that stands for an image."""
    model_type: str = ""
    """Type of the model; empty is the case's name."""
    needs_image: bool = False
    """Prompts without an image are refused."""


CASES: dict[str, VisionCase] = {
    "qwen2_vl": VisionCase(
        "qwen2_vl_text",
        "Qwen2VLProcessor",
        _QWEN_IMAGES,
        _QWEN_VISION | {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
        _QWEN_TOKENS,
        {"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes=_MROPE | {"use_sliding_window": False},
    ),
    "qwen2_5_vl": VisionCase(
        "qwen2_5_vl_text",
        "Qwen2_5_VLProcessor",
        _QWEN_IMAGES,
        _QWEN_VISION
        | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "window_size": 32}
        | {"fullatt_block_indexes": [1]},
        _QWEN_TOKENS,
        {"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes=_MROPE | {"use_sliding_window": False},
    ),
    "qwen3_vl": VisionCase(
        "qwen3_vl_text",
        "Qwen3VLProcessor",
        _QWEN_IMAGES,
        _QWEN_VISION
        | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_position_embeddings": 64}
        | {"deepstack_visual_indexes": [0]},
        _QWEN_TOKENS | {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"},
        {"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes=_MROPE,
    ),
    "qwen3_5": VisionCase(
        "qwen3_5_text",
        "Qwen3VLProcessor",
        _QWEN_IMAGES,
        _QWEN_VISION
        | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_position_embeddings": 64},
        _QWEN_TOKENS | {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"},
        {"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes={
            "layer_types": [LINEAR, FULL] * 2,
            "rope_parameters": _MROPE["rope_parameters"]
            | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25, "mrope_interleaved": True},
        },
    ),
    "gemma3": VisionCase(
        "gemma3_text",
        "Gemma3Processor",
        {"image_processor_type": "Gemma3ImageProcessor", **_SQUARE},
        _SIGLIP,
        {"image_token": "<soft>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
        {"image_token_index": "<soft>", "boi_token_index": "<boi>", "eoi_token_index": "<eoi>"},
        {"mm_tokens_per_image": 4},
        {"layer_types": [SLIDING, FULL] * 2},
        {"image_seq_length": 4},
        placeholder="<boi>",
    ),
    "gemma4": VisionCase(
        "gemma4_text",
        "Gemma4Processor",
        {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "max_soft_tokens": 70},
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "position_embedding_size": 256,
        },
        {"image_token": IMAGE, "boi_token": "<boi>", "eoi_token": "<eoi>", "audio_token": "<audio>"}
        | {"boa_token": "<boi>", "eoa_token": "<eoi>"},
        {"image_token_id": IMAGE, "boi_token_id": "<boi>", "eoi_token_id": "<eoi>", "audio_token_id": "<audio>"}
        | {"video_token_id": "<video>"},
        {"audio_config": None},
        {"layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 0},
    ),
    "mistral3": VisionCase(
        "mistral",
        "PixtralProcessor",
        {"image_processor_type": "PixtralImageProcessor", "patch_size": 8, "size": {"longest_edge": 64}},
        _PIXTRAL,
        ids={"image_token_index": IMAGE},
        fields={"spatial_merge_size": 2, "vision_feature_layer": -1},
        text_changes={"sliding_window": None},
        of_processor={"patch_size": 8, "spatial_merge_size": 2, "image_token": IMAGE},
    ),
    "llava": VisionCase(
        "llama",
        "LlavaProcessor",
        {"image_processor_type": "CLIPImageProcessor", **_SHORTEST},
        _CLIP,
        ids={"image_token_index": IMAGE},
        fields={"vision_feature_layer": -2, "image_seq_length": 16},
        of_processor={
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "llava (Pixtral)": VisionCase(
        "mistral",
        "PixtralProcessor",
        {"image_processor_type": "PixtralImageProcessor", "patch_size": 8, "size": {"longest_edge": 64}},
        _PIXTRAL,
        ids={"image_token_index": IMAGE},
        fields={"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "image_seq_length": 1},
        of_processor={"patch_size": 8, "image_token": IMAGE},
        model_type="llava",
    ),
    "llava_next": VisionCase(
        "mistral",
        "LlavaNextProcessor",
        {"image_processor_type": "LlavaNextImageProcessor", **_SHORTEST, "image_grid_pinpoints": _TILES},
        _CLIP,
        ids={"image_token_index": IMAGE},
        fields={"vision_feature_layer": -2, "image_seq_length": 16, "image_grid_pinpoints": _TILES},
        of_processor={
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "llava_onevision": VisionCase(
        "qwen2",
        "LlavaOnevisionProcessor",
        {"image_processor_type": "LlavaOnevisionImageProcessor", **_SQUARE, "image_grid_pinpoints": _TILES},
        _SIGLIP,
        {"image_token": IMAGE, "video_token": "<video>"},
        {"image_token_index": IMAGE, "video_token_index": "<video>"},
        {"image_grid_pinpoints": _TILES, "vision_feature_layer": -1, "vision_aspect_ratio": "anyres_max_2"},
        of_processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
        | {"vision_aspect_ratio": "anyres_max_2"},
    ),
    "idefics2": VisionCase(
        "mistral",
        "Idefics2Processor",
        {"image_processor_type": "Idefics2ImageProcessor", "size": {"shortest_edge": 16, "longest_edge": 32}}
        | {"do_image_splitting": False},
        {**_SIGLIP, "model_type": "idefics2_vision"},
        {"image_token": IMAGE, "image_boundary_token": "<fake_token_around_image>"},
        fields={
            "perceiver_config": {"hidden_size": 64, "resampler_n_latents": 4, "resampler_depth": 1}
            | {"resampler_n_heads": 2, "resampler_head_dim": 16, "num_key_value_heads": 1}
        },
        of_processor={"image_seq_len": 4},
    ),
    "idefics3": VisionCase(
        "llama",
        "Idefics3Processor",
        {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 64}}
        | {"max_image_size": {"longest_edge": 32}},
        {**_SIGLIP, "model_type": "idefics3_vision"},
        fields={"scale_factor": 2},
        of_processor={"image_seq_len": 4},
    ),
    "smolvlm": VisionCase(
        "llama",
        "SmolVLMProcessor",
        {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 64}}
        | {"max_image_size": {"longest_edge": 32}},
        {**_SIGLIP, "model_type": "smolvlm_vision"},
        {"image_token": IMAGE, "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
        | {"end_of_utterance_token": "<end_of_utterance>"},
        fields={"scale_factor": 2},
        of_processor={"image_seq_len": 4},
    ),
    "internvl": VisionCase(
        "qwen2",
        "InternVLProcessor",
        {"image_processor_type": "GotOcr2ImageProcessor", **_SQUARE, "crop_to_patches": True}
        | {"min_patches": 1, "max_patches": 4},
        {**_CLIP, "model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8]},
        {"start_image_token": "<boi>", "end_image_token": "<eoi>", "context_image_token": IMAGE}
        | {"video_token": "<video>"},
        fields={"image_seq_length": 4, "downsample_ratio": 0.5, "vision_feature_layer": -1},
        of_processor={"image_seq_length": 4},
    ),
    "aya_vision": VisionCase(
        "cohere2",
        "AyaVisionProcessor",
        {"image_processor_type": "GotOcr2ImageProcessor", **_SQUARE, "crop_to_patches": True}
        | {"min_patches": 1, "max_patches": 4},
        _SIGLIP,
        ids={"image_token_index": "<soft>"},
        fields={"downsample_factor": 2, "vision_feature_layer": -1},
        of_processor={"patch_size": 8, "img_size": 32, "downsample_factor": 2, "image_token": IMAGE}
        | {"start_of_img_token": "<boi>", "end_of_img_token": "<eoi>", "img_patch_token": "<soft>"},
        text_changes={"layer_types": [SLIDING, FULL] * 2},
    ),
    "paligemma": VisionCase(
        "gemma",
        "PaliGemmaProcessor",
        {"image_processor_type": "SiglipImageProcessor", **_SQUARE, "image_seq_length": 16},
        _SIGLIP | {"projection_dim": 64},
        ids={"image_token_index": IMAGE},
        fields={"projection_dim": 64, "hidden_size": 64},
        needs_image=True,
    ),
}
"""By the model's type, and what is special in brackets."""
