"""Prompts with images in continuous batching: their answers are those of `generate` however they are cut, shared and
preempted, and no image finds the pages of another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.manifest import EngineLoadError
from openai_bls.core.media import Image
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls_transformers.model import vision_forward
from tests.engine_contract import support
from tests.engine_contract.fixtures import EngineFactory
from tests.engine_contract.support import run_all
from tests.kv_events import Consumer
from tests.processors import picture
from tests.unit.builder.repositories import make_repository
from tests_transformers.architectures.comparison import NEW_TOKENS, answers, difference
from tests_transformers.architectures.vision_checkpoint import make_vision_checkpoint
from tests_transformers.architectures.vision_comparison import expected, media_prompt, requests
from tests_transformers.architectures.vision_table import CASES
from tests_transformers.engine.arrivals import run_together
from tests_transformers.engine.gpu.test_paged_attention import StartPaged, kernels, start_with
from tests_transformers.engine.overlapping import IN_EVERY_WAY, overlap, steps
from tests_transformers.engine.restarts import counted_restarts

__all__ = ["kernels", "start_with", "steps"]

PAGE = 32
TEXT = "b" * (PAGE + 8)
FIRST, SECOND = picture(40, 48, 1), picture(40, 48, 2)


class Made:
    """A tiny model with its engine."""

    def __init__(self, folder: Path, name: str, **changes: Any) -> None:
        self.checkpoint = folder / "tiny"
        make_vision_checkpoint(self.checkpoint, name, dataclasses.replace(CASES[name], **changes))
        repository = make_repository(folder / "model_repository")
        build(BuildOptions(str(self.checkpoint), repository, "transformers"), lambda line: None)
        self.version_dir = repository / "tensorrt_llm" / "1"
        self.processor = VisionProcessor(self.version_dir / "tokenizer")

    def asking(self, number: int, *images: Image, **more: Any) -> GenerationRequest:
        """A page of text and more around each image."""
        media = media_prompt(self.processor, "".join(TEXT + "#" for _ in images) + TEXT, images)
        ids = self.processor.expand(media.text, [(image.width, image.height) for image in images])
        return support.request(number, ids, media=media, logprobs=0, **{"max_tokens": NEW_TOKENS} | more)

    def require_right(self, engine: Any, recorder: Any, asked: Sequence[GenerationRequest]) -> None:
        """Answers to what is asked together are those of `generate`."""
        for found, one in zip(answers(engine, recorder, asked), asked, strict=True):
            assert difference(found, expected(self.checkpoint, one, self.processor)) == "", one.request_id


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Positions of three axes, and images in the first layers too."""
    return Made(tmp_path_factory.mktemp("qwen3_vl"), "qwen3_vl")


@pytest.fixture
def towers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each prompt whose images were computed."""
    original, seen = vision_forward.language_inputs, []

    def language_inputs(model: Any, token_ids: Sequence[int], images: Any) -> Any:
        seen.append(len(token_ids))
        return original(model, token_ids, images)

    monkeypatch.setattr(vision_forward, "language_inputs", language_inputs)
    return seen


def cached(recorder: Any, number: int) -> int:
    """Tokens of a prompt that were in the prefix cache."""
    return int(recorder.deltas(number)[0].cached_tokens)


@IN_EVERY_WAY
def test_prompts_with_images_and_without_share_steps(made: Made, start: EngineFactory) -> None:
    """By pieces of 24 tokens, which begin and end within images."""
    require_in_pieces(made, start)


def test_images_with_positions_of_three_axes_share_steps(qwen: Made, start: EngineFactory) -> None:
    require_in_pieces(qwen, start)


def require_in_pieces(made: Made, start: EngineFactory) -> None:
    engine, recorder = start(made.version_dir, max_num_tokens="24", max_batch_size="8")
    made.require_right(engine, recorder, requests(made.processor))
    longer = [made.asking(10, FIRST), made.asking(11, SECOND), made.asking(12, SECOND, FIRST), made.asking(13, FIRST)]
    made.require_right(engine, recorder, longer)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["made", "qwen"])
def test_steps_as_on_a_gpu(
    name: str, request: pytest.FixtureRequest, start_with: StartPaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overlapping, over paged attention and fused layers, and replayed from graphs but for those that read images."""
    made: Made = request.getfixturevalue(name)
    overlap(monkeypatch)
    engine, recorder = start_with("paged", replayed=True, fused=True, folder=made.version_dir, max_num_tokens="64")
    made.require_right(engine, recorder, requests(made.processor))
    made.require_right(engine, recorder, [made.asking(10, FIRST), made.asking(11, SECOND), made.asking(12, FIRST)])
    made.require_right(engine, recorder, [made.asking(13, FIRST)])
    assert cached(recorder, 13)


@pytest.mark.parametrize("name", ["made", "qwen"])
def test_an_image_is_found_again_and_no_other(
    name: str, request: pytest.FixtureRequest, start: EngineFactory, towers: list[int]
) -> None:
    made: Made = request.getfixturevalue(name)
    engine, recorder = start(made.version_dir)
    towers.clear()
    first, again, other, both = (
        made.asking(0, FIRST),
        made.asking(1, FIRST),
        made.asking(2, SECOND),
        made.asking(3, FIRST, SECOND),
    )
    image_at = first.prompt_token_ids.index(next(iter(made.processor.image_token_ids)))
    for one in (first, again, other, both):
        made.require_right(engine, recorder, [one])
    length = len(first.prompt_token_ids)
    assert [cached(recorder, number) for number in range(3)] == [
        0,
        (length - 1) // PAGE * PAGE,
        image_at // PAGE * PAGE,
    ]
    assert cached(recorder, 3) > image_at + made.processor.count(first.prompt_token_ids), "the first of two is found"
    assert towers == [length, length, len(both.prompt_token_ids)], "what the cache has is not computed"
    other_second = made.asking(4, FIRST, FIRST)
    made.require_right(engine, recorder, [other_second])
    assert cached(recorder, 4) <= 2 * len(TEXT) + made.processor.count(first.prompt_token_ids)
    engine.reset_prefix_cache()
    made.require_right(engine, recorder, [msgspec.structs.replace(first, request_id=5)])
    assert cached(recorder, 5) == 0


def test_an_image_that_is_read_otherwise_among_others_is_not_found(tmp_path: Path, start: EngineFactory) -> None:
    """LLaVA-OneVision cuts an image into tiles only where it is the only one."""
    made = Made(tmp_path, "llava_onevision", text="llama")  # whose layers share pages
    engine, recorder = start(made.version_dir)
    for number, images in enumerate([(FIRST,), (FIRST, SECOND), (FIRST, FIRST), (FIRST, SECOND)]):
        made.require_right(engine, recorder, [made.asking(number, *images)])
    before = len(TEXT) // PAGE * PAGE
    assert [cached(recorder, 1), cached(recorder, 2)] == [before, before]
    assert cached(recorder, 3) > 2 * len(TEXT)


@IN_EVERY_WAY
@pytest.mark.parametrize("name", ["made", "qwen"])
def test_a_sequence_that_starts_again_reads_its_image_again(
    name: str, request: pytest.FixtureRequest, start: EngineFactory
) -> None:
    made: Made = request.getfixturevalue(name)
    engine, recorder = start(made.version_dir, max_tokens_in_kv_cache="520")
    asked = [msgspec.structs.replace(one, max_tokens=120) for one in requests(made.processor)]
    with counted_restarts(engine) as restarts:
        tokens = run_together(engine, recorder, asked)
    assert restarts
    for one, found in zip(asked[:3], tokens[:3], strict=True):
        assert found[:NEW_TOKENS] == expected(made.checkpoint, one, made.processor).tokens
    fresh, other = start(made.version_dir)
    assert run_all(fresh, other, asked) == tokens


def test_images_that_cannot_be_read_end_their_request_alone(
    made: Made, start: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = start(made.version_dir, max_num_tokens="64", max_batch_size="8")
    original = vision_forward.language_inputs
    bad = made.asking(0, FIRST)

    def language_inputs(model: Any, token_ids: Sequence[int], images: Any) -> Any:
        if list(token_ids) == bad.prompt_token_ids:
            raise MemoryError("no memory for a tower")
        return original(model, token_ids, images)

    monkeypatch.setattr(vision_forward, "language_inputs", language_inputs)
    engine.submit(bad)
    made.require_right(engine, recorder, [made.asking(1, SECOND, FIRST)])
    recorder.wait_end(0)
    assert recorder.reason(0) == "error"
    assert not recorder.ends[0].invalid
    monkeypatch.undo()
    made.require_right(engine, recorder, [msgspec.structs.replace(bad, request_id=2)])


def test_events_name_the_images_of_a_block(made: Made, start: EngineFactory, tmp_path: Path) -> None:
    endpoints = {name: f"ipc://{tmp_path}/{name}" for name in ("kv_events_endpoint", "kv_events_replay_endpoint")}
    engine, recorder = start(made.version_dir, kv_events_topic="kv@pod@demo", **endpoints)
    engine.reset_prefix_cache()
    consumer = Consumer(endpoints["kv_events_endpoint"], endpoints["kv_events_replay_endpoint"], "kv@pod@demo")
    asked = [made.asking(0, FIRST), made.asking(1, SECOND)]
    run_all(engine, recorder, asked)
    pages = [tuple(asked[0].prompt_token_ids[at : at + PAGE]) for at in (0, PAGE, 2 * PAGE)]
    consumer.until(lambda: len(consumer.blocks) == 5)
    image_at = pages[1].index(next(iter(made.processor.image_token_ids)))
    stored = [(block.token_ids, block.extra_keys) for block in consumer.blocks.values()]
    with_image = [(pages[1], [[image.uuid, image_at]]) for image in (FIRST, SECOND)]
    assert sorted(stored, key=str) == sorted([(pages[0], None), *with_image, *[(pages[2], None)] * 2], key=str)
    consumer.close()


def test_drafts_are_refused_with_images(made: Made, start: EngineFactory) -> None:
    with pytest.raises(EngineLoadError, match=r"speculative decoding .*images"):
        start(made.version_dir, speculative_method="ngram")
