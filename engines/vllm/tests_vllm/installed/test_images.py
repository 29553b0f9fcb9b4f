"""Prompts with images in the real vLLM, held against transformers' own `generate`."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from benchmarks.support.asking import Asker
from openai_bls.core.engine_types import GenerationRequest, SamplingParams
from openai_bls.core.manifest import EngineLoadError, Manifest, write_manifest
from openai_bls.core.media import Image
from openai_bls.core.settings import EngineSettings
from openai_bls.engines.answers import Switch
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.transport.engine_process.engine import ProcessEngine
from openai_bls.transport.engine_process.loading import arguments
from openai_bls.transport.engine_process.source import StartedProcess
from openai_bls.triton_models.preprocessing.prompt import load_tokenizer
from openai_bls_vllm.recipe.self_test import ask_with_images
from openai_bls_vllm.record import VllmRecord
from tests.processors import picture
from tests_transformers.architectures.comparison import NEW_TOKENS, Generated
from tests_transformers.architectures.vision_checkpoint import make_vision_checkpoint
from tests_transformers.architectures.vision_comparison import TEXTS, expected, media_prompt
from tests_transformers.architectures.vision_table import CASES
from tests_vllm.installed.conftest import SILENCE_S, Served
from tests_vllm.vllm_python import vllm_python

pytestmark = pytest.mark.timeout(1800)

TOLERANCE = 1e-3
"""Of log-probabilities. The images have the size that the tower takes: vLLM scales others by torchvision, where
transformers without it does by Pillow, which differs by up to 0.04 in a random model."""
SIZE = CASES["llava"].vision["image_size"]
CASE = dataclasses.replace(
    CASES["llava"], text_changes={"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
)
"""LLaVA with heads of a size that vLLM's attention on a CPU has."""


def as_published(weights: Path) -> None:
    """Name the tower's tensors as checkpoints on the hub do, and vLLM with them."""
    tensors = load_file(weights)
    named = {
        name.replace("vision_tower.", "vision_tower.vision_model.") if "vision_model" not in name else name: tensor
        for name, tensor in tensors.items()
    }
    save_file(named, weights, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    make_vision_checkpoint(folder, "llava", CASE)
    as_published(folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def sees(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """vLLM with a model that takes images."""
    folder = tmp_path_factory.mktemp("vllm_images") / "1"
    shutil.copytree(checkpoint, folder / "checkpoint")
    shutil.copytree(checkpoint, folder / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    write_manifest(
        folder,
        Manifest(
            engine="vllm",
            model_name="sees",
            max_model_len=256,
            max_batch_size=8,
            created=1,
            max_images=4,
            record=VllmRecord(version="0.32.0").fields(),
        ),
    )
    asker = Asker()
    source = StartedProcess(vllm_python(), arguments(folder, {}, EngineSettings()), 0)
    engine = ProcessEngine(source, asker.on_step, SILENCE_S)
    asker.engine = engine
    yield Served(engine, asker, source)
    engine.close()


@pytest.fixture(scope="module")
def asked(checkpoint: Path) -> list[tuple[GenerationRequest, Generated]]:
    """Two images with one prompt, one of them twice, two in one prompt, and text alone; with transformers' answers."""
    processor, tokenizer = VisionProcessor(checkpoint), load_tokenizer(checkpoint)
    first, second = (picture(SIZE, SIZE, seed) for seed in (1, 2))
    one, two, _ = TEXTS
    cases: list[tuple[str, list[Image]]] = [(one, [first]), (one, [second]), (two, [second, first]), (one, [first])]
    found = [GenerationRequest(4, [70, 71, 72, 73, 74], NEW_TOKENS, SamplingParams(temperature=0.0), logprobs=0)]
    for number, (text, images) in enumerate(cases):
        media = media_prompt(processor, text, images)
        ids = processor.expand(media.text, [(SIZE, SIZE)] * len(images))
        unexpanded = tuple(tokenizer(media.text, add_special_tokens=False)["input_ids"])
        media = msgspec.structs.replace(media, token_ids=unexpanded)
        found.append(
            GenerationRequest(number, ids, NEW_TOKENS, SamplingParams(temperature=0.0), logprobs=0, media=media)
        )
    return [(request, expected(checkpoint, request, processor)) for request in found[1:] + found[:1]]


def test_answers_are_those_of_transformers(sees: Served, asked: list[tuple[GenerationRequest, Generated]]) -> None:
    assert sees.engine.info.input_modalities == ("text", "image")
    for at_once in (len(asked), 1):
        for answer, (_, right) in zip(sees.ask([request for request, _ in asked], at_once), asked, strict=True):
            assert answer.error is None
            assert answer.tokens == right.tokens
            assert answer.logprobs.token_logprobs == pytest.approx(right.logprobs, abs=TOLERANCE)
    assert asked[0][1].tokens != asked[1][1].tokens, "two images with one prompt make no difference"


def test_another_expansion_than_was_counted_ends_that_request_alone(
    sees: Served, asked: list[tuple[GenerationRequest, Generated]]
) -> None:
    (request, _), (other, right) = asked[0], asked[1]
    longer = msgspec.structs.replace(request, prompt_token_ids=[*request.prompt_token_ids, 70])
    wrong, answer = sees.ask([longer, other])
    assert wrong.reason == "error"
    assert answer.tokens == right.tokens
    # Its images had reached vLLM's cache; they are there for the next.
    assert sees.ask([request])[0].tokens == asked[0][1].tokens


def test_the_choices_of_a_request_share_their_images(
    sees: Served, asked: list[tuple[GenerationRequest, Generated]]
) -> None:
    request, right = asked[2]
    for answer in sees.ask([request] * 4):
        assert answer.tokens == right.tokens


def test_a_build_asks_with_as_many_images_as_a_prompt_may_hold(
    sees: Served, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Switch(lambda _: None)
    sees.engine._on_step = switch
    processor = VisionProcessor(checkpoint)
    assert ask_with_images(sees.engine, switch, processor) == 4
    expand = processor.expand
    monkeypatch.setattr(processor, "expand", lambda *given: [*expand(*given), 70])
    with pytest.raises(EngineLoadError, match="self-test"):
        ask_with_images(sees.engine, switch, processor)
