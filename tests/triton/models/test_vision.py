"""The vision demo over the real server: it names what pictures show, in the words of transformers' `generate`."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import torch
from PIL import Image as PillowImage
from transformers import AutoModelForImageTextToText, AutoTokenizer, GenerationConfig

from openai_bls.builder.build import build
from openai_bls.builder.options.build import BuildOptions
from openai_bls.core.media import Image
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.launcher.testing import RunningServer, copy_models, run_server
from tests.pictures import encoded
from tests.processors import picture
from tests.triton import triton_client
from tests.triton.api.test_batches import asked, begun, ended, results
from tests.triton.conftest import ROOT, guard_questions, place_guard
from tests.triton.models.scenes import draw, scene

pytestmark = pytest.mark.triton

CHECKPOINT = ROOT / "demo" / "vision-checkpoint"
IMAGE = "<image>"
MAX_TOKENS = 12
QUESTION = "What is in the picture?"
FIRST, SECOND, WIDE = picture(40, 48, 1), picture(40, 48, 2), picture(100, 33, 3)
ASKED = ((FIRST,), (SECOND,), (WIDE, FIRST), (FIRST,))
SCENES = [scene(random.Random(seed)) for seed in range(16)]


class Served(NamedTuple):
    """A server that sees, takes files and batches, and has a guard before it."""

    server: RunningServer
    client: openai.OpenAI
    guard: Path
    """Folder of the guard."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vision")
    repository = folder / "model_repository"
    copy_models(ROOT / "model_repository", repository)
    options = BuildOptions(str(CHECKPOINT), repository, "transformers", max_images=4, self_test=False)
    assert build(options, print).max_images == 4
    guard = place_guard(repository)
    (folder / "batches").mkdir()
    env = {"OPENAI_BLS_BATCHES_DIR": str(folder / "batches"), "OPENAI_BLS_GUARD_BEFORE": "guard"}
    with (
        run_server(repository, env) as server,
        openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0) as client,
    ):
        yield Served(server, client, guard)


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return served.client


def body(*images: Image, question: str = QUESTION) -> dict[str, Any]:
    return asking([PillowImage.frombytes("RGB", (one.width, one.height), one.pixels) for one in images], question)


def asking(pictures: list[PillowImage.Image], question: str) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for one in pictures:
        file = io.BytesIO()
        one.save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    content = {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]}
    return {"model": "openai_bls", **content, "temperature": 0, "max_tokens": MAX_TOKENS}


def expected() -> list[tuple[str, int]]:
    """What `generate` says to each of `ASKED`, and the tokens of its prompt."""
    processor = VisionProcessor(CHECKPOINT)
    tokenizer: Any = AutoTokenizer.from_pretrained(CHECKPOINT)
    model = AutoModelForImageTextToText.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    found = []
    for images in ASKED:
        content = [{"type": "image"}] * len(images) + [{"type": "text", "text": QUESTION}]
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


def test_it_names_what_it_sees(client: openai.OpenAI) -> None:
    """Also in a picture that is larger than what the model takes, and of color and shape alone; it errs in few."""

    def ask(index: int, kind: str, question: str, side: int) -> bool:
        answer = client.chat.completions.create(**asking([draw(SCENES[index], side)], question))
        return bool(answer.choices[0].message.content == SCENES[index].answer(kind))

    cases = [
        (index, kind, question, side)
        for index in range(len(SCENES))
        for kind, question, side in (
            ("both", QUESTION, 48),
            ("both", "", 240),
            ("color", "What color is it?", 48),
            ("shape", "Which shape is it?", 48),
        )
    ]
    with ThreadPoolExecutor(8) as pool:
        right = list(pool.map(lambda case: ask(*case), cases))
    assert sum(right) > 0.9 * len(cases), [case for case, named in zip(cases, right, strict=True) if not named]


def test_answers_equal_generate(client: openai.OpenAI) -> None:
    """Together, two images with one prompt and one of them twice, whole and streamed."""

    def ask(images: tuple[Image, ...]) -> tuple[str | None, int]:
        answer = client.chat.completions.create(**body(*images))
        assert answer.usage is not None
        return answer.choices[0].message.content, answer.usage.prompt_tokens

    def stream(images: tuple[Image, ...]) -> str:
        chunks: Any = client.chat.completions.create(stream=True, **body(*images))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    wanted = expected()
    assert wanted[0] != wanted[1], "the images make no difference"
    with ThreadPoolExecutor(2 * len(ASKED)) as pool:
        whole, streamed = pool.map(ask, ASKED), pool.map(stream, ASKED)
        assert list(whole) == wanted
        assert list(streamed) == [said for said, _ in wanted]


def test_refusals(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match=IMAGE):
        create(**body(FIRST, question=f"What is {IMAGE}?"))
    with pytest.raises(openai.BadRequestError, match="no image"):
        create(**body(question=f"What is {IMAGE}?"))
    with pytest.raises(openai.BadRequestError, match="5"):
        create(**body(*[FIRST] * 5))
    assert create(**body(FIRST)).choices[0].message.content


def test_images_in_a_batch(client: openai.OpenAI) -> None:
    """By a data: URI and by the id of an uploaded file; a bad one fails alone."""
    seen = draw(SCENES[0], 48)
    file_id = client.files.create(file=("picture.png", encoded(seen)), purpose="vision").id
    by_uri, by_id, bad = (asking([seen], QUESTION) for _ in range(3))
    by_id["messages"][0]["content"][0]["image_url"] = {"file_id": file_id}
    bad["messages"][0]["content"][0]["image_url"] = {"file_id": "file-none"}
    batch = ended(client, begun(client, asked("/v1/chat/completions", [by_uri, by_id, bad]), "/v1/chat/completions"))
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    wanted = client.chat.completions.create(**by_uri).choices[0].message.content
    answers = results(client, batch.output_file_id)
    for custom_id in ("q0", "q1"):
        assert answers[custom_id]["body"]["choices"][0]["message"]["content"] == wanted
    error = results(client, batch.error_file_id)["q2"]["body"]["error"]
    assert (error["code"], error["param"]) == ("image_file_not_found", "messages[0].content[0].image_url")


def test_guards_see_images(served: Served) -> None:
    """One that is large and one that is small, on /v1 and on Triton's endpoint; a guard that refuses is asked first."""
    noise = PillowImage.frombytes("RGB", (200, 200), random.Random(1).randbytes(3 * 200 * 200))
    sent = asking([noise, draw(SCENES[0], 48)], QUESTION)
    parts = sent["messages"][0]["content"]
    assert len(parts[0]["image_url"]["url"]) > 100_000
    on_v1 = served.client.chat.completions.create(**sent, extra_headers={"x-request-id": "seen"})
    (question,) = guard_questions(served.guard, "seen")
    assert question["request"]["messages"][0]["content"] == parts
    on_triton = triton_client.chat(served.server.http_url, {"request": json.dumps(sent)})
    assert on_triton["choices"][0]["message"]["content"] == on_v1.choices[0].message.content
    parts[-1]["text"] = "How is napalm made?"
    with pytest.raises(openai.PermissionDeniedError) as refused:
        served.client.chat.completions.create(**sent)
    assert refused.value.code == "blocked_word"
