"""Images in the embedded engine: each request its own, whatever runs beside it, and bad ones refused alone."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.builder.options.lora import LoraOptions
from openai_bls.core.engine_types import GenerationRequest, Grammar
from openai_bls.core.manifest import BuildError, EngineLoadError, load_manifest
from openai_bls.core.media import MediaPrompt
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls_transformers.model import image_inputs
from openai_bls_transformers.record import EmbeddedRecord
from tests.engine_contract.fixtures import EngineFactory
from tests.engine_contract.support import change_record, request, run_all
from tests.processors import picture
from tests.prompt_logprobs import unpacked
from tests.unit.builder.repositories import make_repository
from tests.waiting import until
from tests_transformers.architectures.comparison import answers, difference
from tests_transformers.architectures.vision_checkpoint import make_vision_checkpoint
from tests_transformers.architectures.vision_comparison import expected, media_prompt, requests
from tests_transformers.architectures.vision_table import CASES
from tests_transformers.engine.arrivals import submit_together
from tests_transformers.engine.overlapping import IN_EVERY_WAY, steps

__all__ = ["steps"]

Made = tuple[Path, Path]
"""Checkpoint, and the folder of its engine."""

_LIMIT_S = 60.0
_LARGE_SIDE = 112
"""Pixels; what the processor makes of smaller images it keeps."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A Qwen2-VL, whose positions have three axes."""
    folder = tmp_path_factory.mktemp("images")
    make_vision_checkpoint(folder / "tiny", "qwen2_vl", CASES["qwen2_vl"])
    repository = make_repository(folder / "model_repository")
    build(BuildOptions(str(folder / "tiny"), repository, "transformers"), lambda line: None)
    return folder / "tiny", repository / "tensorrt_llm" / "1"


@pytest.fixture
def processor(made: Made) -> VisionProcessor:
    return VisionProcessor(made[1] / "tokenizer")


def with_image(processor: VisionProcessor, number: int, side: int = 32, **more: Any) -> GenerationRequest:
    media = media_prompt(processor, "see #", [picture(side, side, 5)])
    return request(number, prompt=processor.expand(media.text, [(side, side)]), media=media, **more)


def test_the_build_says_and_records_images(made: Made) -> None:
    manifest = load_manifest(made[1])
    assert manifest.max_images == 8
    tested = EmbeddedRecord.of(manifest).self_test
    assert tested is not None
    assert tested.runner == "continuous_batching"
    own = VisionProcessor(made[1] / "tokenizer")
    assert any(own.count(prompt) for prompt in tested.prompts), "a load replays a prompt with an image"


def test_a_load_compares_answers_about_images(made: Made, start: EngineFactory, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made[1], tmp_path / "tensorrt_llm" / "1"))
    record = EmbeddedRecord.of(load_manifest(folder)).self_test
    assert record is not None
    engine, _ = start(folder)
    assert engine.info.input_modalities == ("text", "image")
    wrong = [[0] * len(row) for row in record.token_ids]
    change_record(folder, self_test=msgspec.structs.replace(record, token_ids=wrong))
    with pytest.raises(EngineLoadError, match="weights"):
        start(folder)


def test_bad_images_are_refused_and_hurt_nobody(made: Made, processor: VisionProcessor, start: EngineFactory) -> None:
    engine, recorder = start(made[1])
    good = requests(processor)
    token = processor.image_token
    ids = processor.expand(token, [(32, 32)])
    image = picture(32, 32, 1)
    bad = {
        20: (request(20, prompt=ids, media=MediaPrompt((picture(4, 1200, 1),), token, ())), "aspect ratio"),
        21: (request(21, prompt=ids[:-1], media=MediaPrompt((image,), token, ())), "prompt_token_ids are not those"),
        22: (request(22, prompt=ids, media=MediaPrompt((image,) * 9, token, ())), "at most 8"),
        23: (request(23, prompt=ids), "no image is given"),
        24: (with_image(processor, 24, prompt_logprobs=1), "prompt_logprobs"),
        25: (with_image(processor, 25, pooling="last", max_tokens=0), "pooling"),
        26: (request(26, prompt=ids, media=MediaPrompt((image, image), token, ())), "places for 1 images"),
    }
    for one, _ in bad.values():
        engine.submit(one)
    got = answers(engine, recorder, good)
    recorder.wait_end(*bad)
    for number, (_, told) in bad.items():
        end = recorder.ends[number]
        assert end.invalid, end
        assert told in (end.error or "")
    assert difference(got[0], expected(made[0], good[0], processor)) == ""


def test_other_fields_hold_with_images(made: Made, processor: VisionProcessor, start: EngineFactory) -> None:
    engine, recorder = start(made[1])
    grammar = Grammar("lark", 'start: "ab"')
    asked = [
        with_image(processor, 0, grammar=grammar, max_tokens=20),
        with_image(processor, 1, max_tokens=0),
        with_image(processor, 2, max_tokens=4),
        request(3, max_tokens=0, pooling="mean"),
        request(4, max_tokens=1, prompt_logprobs=1),
    ]
    tokens = run_all(engine, recorder, asked)
    assert tokens[0] == [64, 65]
    assert recorder.ends[1].finish_reason == "length"
    assert len(tokens[2]) == 4
    embedding = recorder.ends[3].embedding
    assert embedding is not None
    assert sum(value * value for value in embedding) == pytest.approx(1, abs=1e-4)
    assert len(unpacked(recorder.deltas(4)[0].prompt_logprobs).token_logprobs) == 2


def test_a_request_is_cancelled_while_its_image_is_prepared(
    made: Made, processor: VisionProcessor, start: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = start(made[1])
    images: Any = engine._images  # type: ignore[attr-defined]
    original: Callable[..., Any] = images.arguments

    def cancelled_first(*args: Any) -> Any:
        engine.cancel(0)
        recorder.wait_end(0)
        return original(*args)

    monkeypatch.setattr(images, "arguments", cancelled_first)
    run_all(engine, recorder, [with_image(processor, 0)])
    assert recorder.reason(0) == "cancelled"
    monkeypatch.undo()
    assert len(run_all(engine, recorder, [with_image(processor, 1)])[0]) == 8


def test_images_of_api_keys_are_prepared_in_turn(
    made: Made, processor: VisionProcessor, start: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = start(made[1])
    images: Any = engine._images  # type: ignore[attr-defined]
    original: Callable[..., Any] = images.arguments
    asked = [with_image(processor, number, owner="alice") for number in range(2 * image_inputs._MOST_THREADS)]
    asked.append(with_image(processor, len(asked), owner="bob"))
    owners = {id(one.media): one.owner for one in asked}
    released, order = threading.Event(), []

    def held(prompt_token_ids: Any, media: Any) -> Any:
        order.append(owners[id(media)])
        assert released.wait(_LIMIT_S)
        return original(prompt_token_ids, media)

    monkeypatch.setattr(images, "arguments", held)
    for one in asked:
        engine.submit(one)
    until(lambda: images._pool._queue.waiting("bob") == 1)
    released.set()
    for number in range(len(asked)):
        recorder.wait_end(number)
    assert order.index("bob") <= image_inputs._MOST_THREADS


@IN_EVERY_WAY
def test_choices_of_a_request_share_what_the_processor_makes(
    made: Made, processor: VisionProcessor, start: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, recorder = start(made[1])
    first, other = (with_image(processor, number, _LARGE_SIDE, max_tokens=12) for number in (0, 4))
    right = expected(made[0], first, processor).tokens
    original, pixels = VisionProcessor.inputs, []

    def inputs(*args: Any, **more: Any) -> Any:
        found = original(*args, **more)
        pixels.append(weakref.ref(found["pixel_values"]))
        return found

    monkeypatch.setattr(VisionProcessor, "inputs", inputs)
    choices = [msgspec.structs.replace(first, request_id=number) for number in range(3)]
    # Of another prompt than its media says.
    wrong = msgspec.structs.replace(first, request_id=3, prompt_token_ids=first.prompt_token_ids[:-1])
    submit_together(engine, [*choices, other])
    engine.submit(wrong)
    recorder.wait_end(*range(5))
    assert recorder.ends[3].invalid
    assert [recorder.tokens[number] for number in (0, 1, 2, 4)] == [right] * 4
    assert len(pixels) == 1 + 2 + 1, "one request, one that is refused, and another with an equal image"
    late = msgspec.structs.replace(first, request_id=5)
    del first, choices, wrong, other
    run_all(engine, recorder, [request(6)])  # the engine is past the steps of the others

    def gone() -> bool:
        gc.collect()
        return all(ref() is None for ref in pixels)

    until(gone)  # the threads that prepared them are past them too
    assert run_all(engine, recorder, [late])[0] == right
    assert len(pixels) == 5, "nothing is kept for a request to come"


def test_options_that_leave_images_out(made: Made, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "model_repository")
    options = BuildOptions(str(made[0]), repository, "transformers", max_images=0)
    with pytest.raises(BuildError, match="causal class"):
        build(options, lambda line: None)
    for changed, told in [
        (msgspec.structs.replace(options, max_images=-1), "--max-images -1"),
        (msgspec.structs.replace(options, max_images=2, lora=LoraOptions(max_loras=1)), "--max-loras"),
        (msgspec.structs.replace(options, max_images=None, lora=LoraOptions(max_loras=1)), "--max-loras"),
        (msgspec.structs.replace(options, max_images=None, max_model_len=16), "room for a prompt"),
    ]:
        with pytest.raises(BuildError, match=told):
            build(changed, lambda line: None)


def test_text_is_served_where_images_cannot_be(tmp_path: Path) -> None:
    make_vision_checkpoint(tmp_path / "tiny", "gemma3", CASES["gemma3"])
    (tmp_path / "tiny" / "preprocessor_config.json").write_text('{"image_processor_type": "Llama4ImageProcessor"}')
    lines: list[str] = []
    manifest = build(
        BuildOptions(str(tmp_path / "tiny"), make_repository(tmp_path / "model_repository"), "transformers"),
        lines.append,
    )
    assert manifest.max_images == 0
    assert any("images are refused: " in line and "torchvision" in line.lower() for line in lines)
    assert torch.is_grad_enabled()
