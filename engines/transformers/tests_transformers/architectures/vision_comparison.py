"""Comparison of the embedded engine with transformers' `generate` for prompts with images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.engine_types import GenerationRequest
from openai_bls.core.manifest import BuildError
from openai_bls.core.media import Image, MediaPrompt
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.engines.registry import create_engine
from tests.engine_contract.support import Recorder, request
from tests.processors import picture
from tests_transformers.architectures import comparison
from tests_transformers.architectures.comparison import NEW_TOKENS, Generated, Result, RunnerLog, difference, refused

TEXTS = ("What is # here?", "# and # differ", "At the end #")
"""Prompts; # is the place of an image."""


def requests(processor: VisionProcessor, *, text: bool = True) -> list[GenerationRequest]:
    """Two images with one prompt, one of them twice, two in one prompt, one at a prompt's end, and with `text` a prompt
    without any."""
    first, second, wide = picture(40, 48, 1), picture(40, 48, 2), picture(100, 33, 3)
    cases: list[tuple[str, Sequence[Image]]] = [
        (TEXTS[0], [first]),
        (TEXTS[0], [second]),
        (TEXTS[1], [wide, first]),
        (TEXTS[0], [first]),
        (TEXTS[2], [second]),
    ]
    found = []
    for number, (prompt, images) in enumerate(cases):
        media = media_prompt(processor, prompt, images)
        ids = processor.expand(media.text, [(image.width, image.height) for image in images])
        found.append(request(number, prompt=ids, max_tokens=NEW_TOKENS, logprobs=0, media=media))
    if text:
        found.append(request(len(cases), prompt=[70, 71, 72, 73, 74], max_tokens=NEW_TOKENS, logprobs=0))
    return found


def media_prompt(processor: VisionProcessor, text: str, images: Sequence[Image]) -> MediaPrompt:
    """A prompt in which each # is the place of an image."""
    return MediaPrompt(tuple(images), text.replace("#", processor.image_token), ())


def expected(checkpoint: Path, one: GenerationRequest, processor: VisionProcessor) -> Generated:
    """What transformers' `generate` says to the prompt of a request."""
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.tensor([one.prompt_token_ids])
    inputs: dict[str, Any] = {"input_ids": ids}
    if one.media is not None:
        inputs = dict(processor.inputs(one.media.text, one.media.images))
        assert inputs["input_ids"].tolist() == ids.tolist(), "the prompt is not what the processor makes of it"
    return comparison.generated(model, inputs)


def compare(checkpoint: Path, repository: Path, *, text: bool = True) -> Result:
    """Build `checkpoint` into `repository`, load it, and compare batched and lone answers with transformers'."""
    lines: list[str] = []
    try:
        manifest = build(BuildOptions(str(checkpoint), repository, "transformers"), lines.append)
    except BuildError as error:
        return refused(error)
    if not manifest.max_images:
        return Result("text", next(line for line in lines if line.startswith("images are refused")))
    version_dir = repository / "tensorrt_llm" / "1"
    recorder, log = Recorder(), RunnerLog()
    with log:
        engine = create_engine(version_dir, recorder, {"num_threads": "1"})
    processor = VisionProcessor(version_dir / "tokenizer")
    asked = requests(processor, text=text)
    try:
        got = comparison.together_and_alone(engine, recorder, asked)
    except RuntimeError as error:
        return Result("fails", str(error))
    wanted = [expected(checkpoint, one, processor) for one in asked]
    assert difference(wanted[0], wanted[1]), "two images with one prompt make no difference"
    return comparison.fault(got, wanted) or log.result()
