"""The direct benchmark over the null engine."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import pytest

from benchmarks.images import runners as image_runners
from benchmarks.support import ROOT
from benchmarks.support.asking import Asker
from benchmarks.support.engine import Work, floor, run_levels
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.engines.registry import create_engine


def test_every_request_is_counted(tmp_path: Path) -> None:
    asker = Asker()
    asker.engine = create_engine(tmp_path, asker.on_step, {"engine": "null", "null_step_delay_ms": "1"})
    try:
        one, four = run_levels(asker, "null", (1, 4), Work(5, 10, requests_per_slot=2, min_requests=3))
    finally:
        asker.engine.close()
    assert (one.requests, one.tokens, one.failed) == (3, 30, 0)
    assert (four.requests, four.tokens, four.failed) == (8, 80, 0)
    assert one.steps >= 30


def test_prompts_with_images_and_without_are_of_one_length() -> None:
    processor = VisionProcessor(ROOT / "demo" / "vision-checkpoint")
    one, other = image_runners.requests(processor, "an image each", 2, 48, 5)
    same, again = image_runners.requests(processor, "one image for all", 2, 48, 5)
    text, _ = image_runners.requests(processor, "text alone", 2, 48, 5)
    assert one.media is not None
    assert other.media is not None
    assert one.media.images != other.media.images
    assert same.media is not None
    assert again.media is not None
    assert same.media.images == again.media.images
    assert processor.count(one.prompt_token_ids) == one.media.image_tokens == 36
    assert text.media is None
    assert processor.count(text.prompt_token_ids) == 0
    assert len(text.prompt_token_ids) == len(one.prompt_token_ids)


@pytest.mark.parametrize(("tied", "step_bytes"), [(False, 30), (True, 110)])
def test_bytes_read_per_step(tmp_path: Path, tied: bool, step_bytes: int) -> None:
    ranges = {"model.embed_tokens.weight": (0, 100), "model.norm.weight": (100, 110), "lm_head.weight": (110, 130)}
    tensors = {name: {"data_offsets": range_} for name, range_ in ranges.items() if not tied or name[0] == "m"}
    header = msgspec.json.encode(tensors)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert floor(tmp_path).step_bytes == step_bytes
