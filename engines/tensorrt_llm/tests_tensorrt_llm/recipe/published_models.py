"""Config.json files in published/, and the published sizes of their models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from openai_bls_tensorrt_llm.recipe.model.shapes import ModelShape, shape_of

_FILES = {path.stem: path for path in (Path(__file__).parent / "published").glob("*/*.json")}
NAMES = sorted(_FILES)


class Published(NamedTuple):
    """What is known of a model from elsewhere than its config.json."""

    parameters: int
    kv_kib: float
    """KiB of keys and values per token, at 2 bytes per element."""


# Parameters as the models' pages and papers give them. KV cache: 2 × layers × KV heads × head size × 2 bytes, of what
# they say of the three.
PUBLISHED = {
    "Llama-2-7b-hf": Published(6_738_415_616, 512),
    "Llama-2-13b-hf": Published(13_015_864_320, 800),
    "Llama-2-70b-hf": Published(68_976_648_192, 320),
    "Meta-Llama-3-8B": Published(8_030_261_248, 128),
    "Llama-3.1-8B": Published(8_030_261_248, 128),
    "Llama-3.2-1B": Published(1_235_814_400, 32),
    "CodeLlama-13b-hf": Published(13_016_028_160, 800),
    "Yi-6B": Published(6_061_035_520, 64),
    "Yi-34B": Published(34_388_917_248, 240),
    "Mistral-7B-v0.1": Published(7_241_732_096, 128),
    "Mixtral-8x7B-v0.1": Published(46_702_792_704, 128),
    "Qwen-7B-Chat": Published(7_721_324_544, 512),
    "Qwen1.5-1.8B-Chat": Published(1_836_828_672, 192),
    "Qwen1.5-14B-Chat": Published(14_167_290_880, 800),
    "Qwen1.5-MoE-A2.7B": Published(14_315_784_192, 192),
    "Qwen2-0.5B": Published(494_032_768, 12),
    "Qwen2.5-7B-Instruct": Published(7_615_616_512, 56),
    "Qwen2.5-72B-Instruct": Published(72_706_203_648, 320),
    "Qwen3-0.6B": Published(596_049_920, 112),
    "Qwen3-8B": Published(8_190_735_360, 144),
    "Qwen3-30B-A3B": Published(30_532_122_624, 96),
    "DeepSeek-R1-Distill-Qwen-1.5B": Published(1_777_088_000, 28),
    "Baichuan2-7B-Chat": Published(7_505_973_248, 512),
    "Baichuan2-13B-Chat": Published(13_896_668_160, 800),
    "chatglm3-6b": Published(6_243_584_000, 28),
    "glm-4-9b-chat": Published(9_399_951_360, 40),
    "glm-4-9b-chat-hf": Published(9_399_951_360, 40),
    "GLM-4-9B-0414": Published(9_400_279_040, 40),
    "Phi-3-mini-4k-instruct": Published(3_821_079_552, 384),
    "gemma-7b": Published(8_537_680_896, 448),
    "gemma-2-9b": Published(9_241_705_984, 336),
    "gemma-3-1b-it": Published(999_885_952, 26),
}


def config(name: str) -> dict[str, Any]:
    """The contents of one file."""
    found: dict[str, Any] = msgspec.json.decode(_FILES[name].read_bytes())
    return found


@cache
def shape(name: str) -> ModelShape:
    """Its shape."""
    return shape_of(config(name))
