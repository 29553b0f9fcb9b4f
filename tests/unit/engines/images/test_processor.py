"""A model's processor: the token ids of AutoProcessor from sizes alone, and refusals in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoProcessor

from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.images.processor import ImageError, VisionProcessor
from tests.processors import PROCESSORS, picture, write_processor

SIZES = [(40, 70), (100, 33)]


def load(folder: Path, name: str) -> VisionProcessor:
    write_processor(folder, PROCESSORS[name])
    return VisionProcessor(folder)


@pytest.mark.parametrize("name", ["llava", "gemma3", "idefics3", "llava_next", "paligemma"])
def test_expands_as_auto_processor_does(name: str, tmp_path: Path) -> None:
    processor = load(tmp_path, name)
    text = f"Hello {processor.image_token} and {processor.image_token}?"
    images = [picture(*size, seed) for seed, size in enumerate(SIZES)]
    own = AutoProcessor.from_pretrained(tmp_path)
    from PIL import Image

    drawn = [Image.frombytes("RGB", (one.width, one.height), one.pixels) for one in images]
    wanted = own(images=[drawn], text=[text], add_special_tokens=False, return_tensors="pt")
    for _ in range(2):  # the second time from what is known of these sizes
        assert processor.expand(text, SIZES) == wanted["input_ids"][0].tolist()
    found = processor.inputs(text, images)
    assert found["input_ids"].equal(wanted["input_ids"])
    assert found["pixel_values"].equal(wanted["pixel_values"])
    assert processor.count(processor.expand(text, SIZES)) >= 2
    assert processor.image_token in processor.reserved


def test_a_list_of_sizes_is_known_as_a_whole(tmp_path: Path) -> None:
    # LLaVA-OneVision cuts an image into tiles only where it is alone.
    processor = load(tmp_path, "llava_onevision")
    token = processor.image_token
    alone, both = processor.expand(token, [(90, 90)]), processor.expand(token * 2, [(90, 90)] * 2)
    assert len(both) < 2 * len(alone)
    assert processor.expand(token, [(90, 90)]) == alone
    assert processor.expand(token * 2, [(90, 90)] * 2) == both


def test_refuses_what_the_model_cannot_take(tmp_path: Path) -> None:
    processor = load(tmp_path, "qwen2_vl")
    token = processor.image_token
    with pytest.raises(ImageError, match=r"aspect ratio .* 200"):
        processor.expand(token, [(4, 2000)])
    with pytest.raises(ImageError, match="3 x 50 pixels"):
        processor.expand(token, [(3, 50)])
    with pytest.raises(ImageError, match=" 2 images, and 1 "):
        processor.expand(token * 2, [(30, 30)])
    with pytest.raises(ImageError, match="aspect ratio"):
        processor.inputs(token, [picture(4, 2000, 1)])
    assert processor.expand(token, [(30, 30)])


def test_says_what_is_missing(tmp_path: Path) -> None:
    write_processor(tmp_path, PROCESSORS["llava"])
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Llama4ImageProcessor"}')
    with pytest.raises(EngineLoadError, match=r"(?i)torchvision"):
        VisionProcessor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "processor_config.json").write_text("{}")
    with pytest.raises(EngineLoadError, match="no processor"):
        VisionProcessor(tmp_path)
