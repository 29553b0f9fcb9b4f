"""Vision-language architectures: a tiny configuration of each, for its processor of `tests.processors`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tests.processors import IMAGE, PROCESSORS, TILES, ProcessorCase
from tests_transformers.architectures.table import FULL, LINEAR, SLIDING

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
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
_QWEN_VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 8}

_GLM_VISION = _QWEN_VISION | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "image_size": 64}
_GLM_IDS = {"image_token_id": IMAGE, "video_token_id": "<video>", "image_start_token_id": "<boi>"} | {
    "image_end_token_id": "<eoi>"
}


@dataclasses.dataclass(frozen=True)
class VisionCase:
    """A configuration and a processor."""

    processor: ProcessorCase
    text: str
    """Type of the language model."""
    vision: Mapping[str, Any]
    """Fields of the tower's configuration."""
    ids: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"image_token_id": IMAGE})
    """Fields of the configuration that are ids of tokens, with the tokens."""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further fields of the configuration."""
    text_changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the language model's configuration."""
    model_type: str = ""
    """Type of the model; empty is the case's name."""
    needs_image: bool = False
    """Prompts without an image are refused."""


CASES: dict[str, VisionCase] = {
    "qwen2_vl": VisionCase(
        PROCESSORS["qwen2_vl"],
        "qwen2_vl_text",
        _QWEN_VISION | {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
        ids={"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes=_MROPE | {"use_sliding_window": False},
    ),
    "qwen2_5_vl": VisionCase(
        PROCESSORS["qwen2_5_vl"],
        "qwen2_5_vl_text",
        _QWEN_VISION
        | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "window_size": 32}
        | {"fullatt_block_indexes": [1]},
        ids={"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes=_MROPE | {"use_sliding_window": False},
    ),
    "qwen3_vl": VisionCase(
        PROCESSORS["qwen3_vl"],
        "qwen3_vl_text",
        _QWEN_VISION
        | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_position_embeddings": 64}
        | {"deepstack_visual_indexes": [0]},
        ids={"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes=_MROPE,
    ),
    "qwen3_5": VisionCase(
        PROCESSORS["qwen3_5"],
        "qwen3_5_text",
        _QWEN_VISION
        | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_position_embeddings": 64},
        ids={"image_token_id": IMAGE, "video_token_id": "<video>", "vision_start_token_id": "<|vision_start|>"},
        text_changes={
            "layer_types": [LINEAR, FULL] * 2,
            "rope_parameters": _MROPE["rope_parameters"]
            | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25, "mrope_interleaved": True},
        },
    ),
    "glm4v": VisionCase(
        PROCESSORS["glm4v"],
        "glm4v_text",
        _GLM_VISION,
        ids=_GLM_IDS,
        text_changes=_MROPE | {"partial_rotary_factor": 1.0},
    ),
    "glm4v_moe": VisionCase(
        PROCESSORS["glm4v"],
        "glm4v_moe_text",
        _GLM_VISION,
        ids=_GLM_IDS,
        text_changes=_MROPE | {"partial_rotary_factor": 1.0},
    ),
    "gemma3": VisionCase(
        PROCESSORS["gemma3"],
        "gemma3_text",
        _SIGLIP,
        ids={"image_token_index": "<soft>", "boi_token_index": "<boi>", "eoi_token_index": "<eoi>"},
        fields={"mm_tokens_per_image": 4},
        text_changes={"layer_types": [SLIDING, FULL] * 2},
    ),
    "gemma4": VisionCase(
        PROCESSORS["gemma4"],
        "gemma4_text",
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
        ids={"image_token_id": IMAGE, "boi_token_id": "<boi>", "eoi_token_id": "<eoi>", "audio_token_id": "<audio>"}
        | {"video_token_id": "<video>"},
        fields={"audio_config": None},
        text_changes={"layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 0},
    ),
    "mistral3": VisionCase(
        PROCESSORS["mistral3"],
        "mistral",
        _PIXTRAL,
        ids={"image_token_index": IMAGE},
        fields={"spatial_merge_size": 2, "vision_feature_layer": -1},
        text_changes={"sliding_window": None},
    ),
    "llava": VisionCase(
        PROCESSORS["llava"],
        "llama",
        _CLIP,
        ids={"image_token_index": IMAGE},
        fields={"vision_feature_layer": -2, "image_seq_length": 16},
    ),
    "llava (Pixtral)": VisionCase(
        PROCESSORS["llava (Pixtral)"],
        "mistral",
        _PIXTRAL,
        ids={"image_token_index": IMAGE},
        fields={"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "image_seq_length": 1},
        model_type="llava",
    ),
    "llava_next": VisionCase(
        PROCESSORS["llava_next"],
        "mistral",
        _CLIP,
        ids={"image_token_index": IMAGE},
        fields={"vision_feature_layer": -2, "image_seq_length": 16, "image_grid_pinpoints": TILES},
    ),
    "llava_onevision": VisionCase(
        PROCESSORS["llava_onevision"],
        "qwen2",
        _SIGLIP,
        ids={"image_token_index": IMAGE, "video_token_index": "<video>"},
        fields={"image_grid_pinpoints": TILES, "vision_feature_layer": -1, "vision_aspect_ratio": "anyres_max_2"},
    ),
    "idefics2": VisionCase(
        PROCESSORS["idefics2"],
        "mistral",
        {**_SIGLIP, "model_type": "idefics2_vision"},
        fields={
            "perceiver_config": {"hidden_size": 64, "resampler_n_latents": 4, "resampler_depth": 1}
            | {"resampler_n_heads": 2, "resampler_head_dim": 16, "num_key_value_heads": 1}
        },
    ),
    "idefics3": VisionCase(
        PROCESSORS["idefics3"], "llama", {**_SIGLIP, "model_type": "idefics3_vision"}, fields={"scale_factor": 2}
    ),
    "smolvlm": VisionCase(
        PROCESSORS["smolvlm"], "llama", {**_SIGLIP, "model_type": "smolvlm_vision"}, fields={"scale_factor": 2}
    ),
    "internvl": VisionCase(
        PROCESSORS["internvl"],
        "qwen2",
        {**_CLIP, "model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8]},
        fields={"image_seq_length": 4, "downsample_ratio": 0.5, "vision_feature_layer": -1},
    ),
    "aya_vision": VisionCase(
        PROCESSORS["aya_vision"],
        "cohere2",
        _SIGLIP,
        ids={"image_token_index": "<soft>"},
        fields={"downsample_factor": 2, "vision_feature_layer": -1},
        text_changes={"layer_types": [SLIDING, FULL] * 2},
    ),
    "paligemma": VisionCase(
        PROCESSORS["paligemma"],
        "gemma",
        _SIGLIP | {"projection_dim": 64},
        ids={"image_token_index": IMAGE},
        fields={"projection_dim": 64, "hidden_size": 64},
        needs_image=True,
    ),
}
"""By the model's type, and what is special in brackets."""
