"""Blank images: the tokens of a size without its pixels, by every family, and none of the memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from openai_bls.core.engine_types import PromptRequest
from openai_bls.engines.images.blanks import Blank, blank
from openai_bls.engines.images.processor import ImageError, VisionProcessor
from openai_bls.transport.ipc.prompts import SlowPromptError
from openai_bls.triton_models.preprocessing.prompt import PromptEncoder
from tests.processors import PROCESSORS, write_processor

SIDES = st.one_of(st.integers(1, 40), st.integers(30, 130), st.integers(130, 900))
SIZES = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=3)
LARGE = (4090, 4090)


@pytest.fixture(params=PROCESSORS)
def processor(request: pytest.FixtureRequest, tmp_path: Path) -> VisionProcessor:
    write_processor(tmp_path, PROCESSORS[request.param])
    return VisionProcessor(tmp_path)


def tokens(processor: VisionProcessor, sizes: list[tuple[int, int]], *, blanks: bool) -> list[int] | str:
    processor.takes_blanks = blanks
    processor._known.clear()
    try:
        return processor.expand(f"a {processor.image_token}" * len(sizes), sizes)
    except ImageError as error:
        return str(error)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SIZES)
def test_the_tokens_are_those_of_the_pixels(processor: VisionProcessor, sizes: list[tuple[int, int]]) -> None:
    assert tokens(processor, sizes, blanks=True) == tokens(processor, sizes, blanks=False)


def test_a_large_size_costs_no_pixels(processor: VisionProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    new = Image.new

    def small(mode: str, size: Any, *more: Any) -> Image.Image:
        assert max(size) < 1000
        return new(mode, size, *more)

    assert processor.takes_blanks
    monkeypatch.setattr(Image, "new", small)
    tracemalloc.start()
    try:
        for count in (1, 24):
            processor.expand(processor.image_token * count, [LARGE] * count)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_thin_image_is_not_scaled_up_without_end(tmp_path: Path) -> None:
    # Its shorter side becomes 32 pixels, its longer one eight million.
    write_processor(tmp_path, PROCESSORS["llava"])
    processor = VisionProcessor(tmp_path)
    with pytest.raises(ImageError):
        processor.expand(processor.image_token, [(1_000_000, 4)])
    assert processor.expand(processor.image_token, [(10_000, 4)])


def test_a_processor_that_makes_something_else_of_them_gets_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_processor(tmp_path, PROCESSORS["qwen2_vl"])
    made = blank
    monkeypatch.setattr(
        "openai_bls.engines.images.blanks.blank", lambda shape, *more: made([*shape[:-1], shape[-1] // 2 + 1], *more)
    )
    assert not VisionProcessor(tmp_path).takes_blanks


def test_no_prompt_with_images_waits_for_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Six requests of four images each, in preprocessing.
    write_processor(tmp_path, PROCESSORS["gemma3"])
    encoder = PromptEncoder(tmp_path)
    content = [{"type": "text", "text": "a"}, *[{"type": "image"}] * 4]
    messages = [{"role": "user", "content": content}]

    def request(side: int) -> PromptRequest:
        return PromptRequest(messages=messages, image_sizes=[(side, side)] * 4)

    with pytest.raises(SlowPromptError):
        # The processor is loaded for the first.
        encoder.prepare_quickly(request(64))
    encoder.load_processor()
    tracemalloc.start()
    try:
        results = [encoder.prepare_quickly(request(4090 - number)) for number in range(6)]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert {result.image_tokens for result in results} == {encoder.prepare(request(64)).image_tokens}
    monkeypatch.setattr(encoder._images.load(), "is_quick", False)
    with pytest.raises(SlowPromptError):
        encoder.prepare_quickly(request(4000))


# --- arrays ---

SHAPE = (3, 4, 6)
OPERATIONS: list[Callable[[Any], Any]] = [
    lambda a: a * 2.0,
    lambda a: 1 - a,
    lambda a: ((a.T - np.array([1.0, 2, 3], np.float32)) / np.ones(3)).T,
    lambda a: a.astype(np.float32) + a,
    lambda a: a[None, :, 1:3, ::2],
    lambda a: a.reshape(3, 2, 2, -1).transpose(1, 0, 2, 3).reshape(-1, 6),
    lambda a: np.moveaxis(a, 0, -1),
    lambda a: np.expand_dims(a, 0),
    lambda a: np.concatenate([a, np.ones((3, 2, 6))], axis=1),
    lambda a: np.concatenate([a, a], axis=-1),
    lambda a: np.concatenate([a, a], axis=None),
    lambda a: np.stack([a, a], axis=-1),
    lambda a: np.stack([a, a], axis=-2),
    lambda a: np.vstack([a, a]),
    lambda a: np.pad(a, ((0, 0), (1, 2), (0, 3)), mode="constant", constant_values=1),
    lambda a: np.pad(a, 2),
    lambda a: np.repeat(a, 2, axis=1),
    lambda a: np.repeat(a, 2),
    lambda a: np.tile(a, (2, 1, 1, 3)),
    lambda a: np.tile(a, 2),
    np.zeros_like,
    lambda a: np.zeros_like(a, shape=(3, 9, 9)),
    lambda a: np.full_like(a, 3),
    lambda a: np.where(a > 1, a, 2.5),
    lambda a: np.clip(a, 0, 1),
    lambda a: a.clip(0, 1),
    np.copy,
    lambda a: np.broadcast_to(a[:, None], (3, 5, 4, 6)),
    lambda a: np.sum(a, axis=1),
    lambda a: np.sum(a, axis=(0, -1), keepdims=True),
    np.max,
    lambda a: a.min(axis=0),
    lambda a: np.all(a >= 0),
    lambda a: np.rot90(a, axes=(1, 2)),
    lambda a: np.split(a, 2, axis=1)[1],
    lambda a: np.squeeze(a[:1]),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("number", range(len(OPERATIONS)))
def test_an_operation_has_the_shape_and_the_type_of_the_real_one(number: int, dtype: Any) -> None:
    wanted = OPERATIONS[number](np.zeros(SHAPE, dtype))
    found = OPERATIONS[number](blank(SHAPE, dtype))
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found).dtype == wanted.dtype
    if np.ndim(wanted):
        assert isinstance(found, Blank)
        assert not any(found.strides[at] for at in range(found.ndim) if found.shape[at] > 1)


@pytest.mark.parametrize(
    "operation",
    [
        lambda a: a + np.ones((2, 2)),
        lambda a: np.concatenate([a, a[:, :2]], axis=2),
        lambda a: np.stack([a, a[:, :2]]),
        lambda a: np.pad(a, ((0, 0), (-1, 0), (0, 0))),
        lambda a: a.reshape(5, -1),
    ],
)
def test_what_numpy_refuses_is_refused(operation: Callable[[Any], Any]) -> None:
    for array in (np.zeros(SHAPE), blank(SHAPE)):
        with pytest.raises(ValueError):  # noqa: PT011
            operation(array)


def test_a_blank_array_takes_no_content() -> None:
    array = blank((10**6, 10**6))
    array[1:3] = 7
    array[...] += 1
    assert array.max() == 0
