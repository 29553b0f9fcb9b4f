"""A tiny vision-language model over the real server: answers about images are those of transformers' `generate`."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image as PillowImage
from transformers import AutoModelForImageTextToText, AutoTokenizer, GenerationConfig

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.media import Image
from openai_bls.engines.vision_processor import VisionProcessor
from openai_bls.launcher.testing import copy_models, run_server
from tests.architectures.vision_checkpoint import make_vision_checkpoint
from tests.architectures.vision_comparison import picture
from tests.architectures.vision_table import CASES, IMAGE
from tests.triton.conftest import ROOT

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        "image_url" not in (ROOT / "openai_bls" / "api" / "chat" / "schema.py").read_text(encoding="utf-8"),
        reason="chat completions take no images yet",
    ),
]

MAX_TOKENS = 10
QUESTION = "What is it?"
FIRST, SECOND, WIDE = picture(40, 48, 1), picture(40, 48, 2), picture(100, 33, 3)
ASKED = ((FIRST,), (SECOND,), (WIDE, FIRST), (FIRST,))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision") / "tiny-vl"
    make_vision_checkpoint(folder, "qwen2_vl", CASES["qwen2_vl"])
    return folder


@pytest.fixture(scope="module")
def client(checkpoint: Path) -> Iterator[openai.OpenAI]:
    repository = checkpoint.parent / "model_repository"
    copy_models(ROOT / "model_repository", repository)
    assert build(BuildOptions(str(checkpoint), repository, max_images=4), print).max_images == 4
    with (
        run_server(repository) as server,
        openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as found,
    ):
        yield found


def body(*images: Image, question: str = QUESTION) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
    for image in images:
        file = io.BytesIO()
        PillowImage.frombytes("RGB", (image.width, image.height), image.pixels).save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        # Images without anything between them have no positions in Qwen's classes; its own templates put tokens there.
        parts += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "."}]
    content = {"messages": [{"role": "user", "content": parts}]}
    return {"model": "tiny-vl", **content, "temperature": 0, "max_tokens": MAX_TOKENS}


def expected(checkpoint: Path) -> list[tuple[str, int]]:
    """What `generate` says to each of `ASKED`, and the tokens of its prompt."""
    processor = VisionProcessor(checkpoint)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    found = []
    for images in ASKED:
        content = [
            {"type": "text", "text": QUESTION},
            *[{"type": "image"}, {"type": "text", "text": "."}] * len(images),
        ]
        chat = [{"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        inputs = dict(processor.inputs(text, images))
        ids = inputs["input_ids"]
        output: Any = model.generate(
            **inputs, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0
        )
        said = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
        found.append((said, ids.shape[1]))
    return found


def test_answers_equal_generate(checkpoint: Path, client: openai.OpenAI) -> None:
    """Together, two images with one prompt and one of them twice, whole and streamed."""

    def ask(images: tuple[Image, ...]) -> tuple[str | None, int]:
        answer = client.chat.completions.create(**body(*images))
        assert answer.usage is not None
        return answer.choices[0].message.content, answer.usage.prompt_tokens

    def stream(images: tuple[Image, ...]) -> str:
        chunks: Any = client.chat.completions.create(stream=True, **body(*images))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    wanted = expected(checkpoint)
    assert wanted[0] != wanted[1], "the images make no difference"
    with ThreadPoolExecutor(2 * len(ASKED)) as pool:
        whole, streamed = pool.map(ask, ASKED), pool.map(stream, ASKED)
        assert list(whole) == wanted
        assert list(streamed) == [said for said, _ in wanted]


def test_refusals(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match=IMAGE):
        create(**body(FIRST, question=f"What is {IMAGE}?"))
    with pytest.raises(openai.BadRequestError, match="no image is given"):
        create(**body(question=f"What is {IMAGE}?"))
    with pytest.raises(openai.BadRequestError, match="aspect ratio"):
        create(**body(picture(4, 1200, 1)))
    with pytest.raises(openai.BadRequestError, match="5"):
        create(**body(*[FIRST] * 5))
    assert create(**body(FIRST)).choices[0].message.content
