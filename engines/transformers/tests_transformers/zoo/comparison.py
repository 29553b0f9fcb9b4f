"""Comparison of a checkpoint's chats, built by the command line and served, with transformers' own chat pipelines."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from transformers import AutoTokenizer, pipeline

from openai_bls.commands.main import main
from openai_bls.core.media import Image as Pixels
from openai_bls.engines.images.processor import VisionProcessor
from openai_bls.output.detect import HARMONY
from tests.processors import picture
from tests.unit.core_support import ask
from tests_transformers.zoo import templates
from tests_transformers.zoo.checkpoint import ANSWER, ARGUMENTS, THOUGHTS, Lesson, lessons, script
from tests_transformers.zoo.served import served
from tests_transformers.zoo.table import Family

Message = dict[str, Any]
NEW_TOKENS = 24
"""Of chats that nothing was taught for."""
LESSON_TOKENS = 200
CHATS: tuple[list[Message], ...] = (
    [{"role": "user", "content": "Hello, how are you? 你好 👍🏽"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Add 2 and 3\n"},
        {"role": "assistant", "content": "It's 5."},
        {"role": "user", "content": "def f(x):\n\treturn [1, 2]"},
    ],
)


class Chat(NamedTuple):
    """One request."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int = NEW_TOKENS


def build(checkpoint: Path, repository: Path) -> tuple[int, str]:
    """Exit status and errors of `openai-bls build`."""
    said = io.StringIO()
    words = ["build", "--model", str(checkpoint), "--model-repository", str(repository), "--engine", "transformers"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        status = main(words)
    return status, said.getvalue()


def answers(repository: Path, chats: Sequence[Chat]) -> list[Message]:
    """Messages that /v1/chat/completions answers to chats that come together."""

    async def one(app: Any, chat: Chat) -> Message:
        body = {"messages": _for_openai(chat.messages), "temperature": 0, "max_tokens": chat.max_tokens}
        answer = await ask(app, "POST", "/v1/chat/completions", body | ({"tools": chat.tools} if chat.tools else {}))
        assert answer.status == 200, answer.body
        message: Message = answer.json()["choices"][0]["message"]
        return message

    async def everyone() -> list[Message]:
        async with served(repository) as app:
            return await asyncio.gather(*(one(app, chat) for chat in chats))

    return asyncio.run(everyone())


def _for_openai(messages: Sequence[Message]) -> list[Message]:
    """Messages with arguments as JSON text, which chat templates get as objects."""

    def call(given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "function": {**given["function"], "arguments": json.dumps(given["function"]["arguments"])}}

    return [
        {**one, "tool_calls": list(map(call, one["tool_calls"]))} if "tool_calls" in one else one for one in messages
    ]


class Reference:
    """transformers' chat pipeline over a checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._pipeline: Any = pipeline("text-generation", model=str(checkpoint), dtype=torch.float32, device="cpu")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)

    def text(self, chat: Chat, *, special: bool = False) -> str:
        """What its greedy answer adds to the text of the prompt; with the special tokens for `special`.

        The pipeline for images has it so too. That for text decodes an answer by itself, whose first word then has no
        space before it, or a mark of WordPiece's.
        """
        tools: dict[str, Any] = {} if chat.tools is None else {"tools": chat.tools}
        options = {"do_sample": False, "max_new_tokens": chat.max_tokens, "return_tensors": True}
        ids = self._pipeline(chat.messages, **options, **tools)[0]["generated_token_ids"]
        asked = self.tokenizer.apply_chat_template(chat.messages, add_generation_prompt=True, return_dict=True, **tools)
        prompt = asked["input_ids"]
        assert ids[: len(prompt)] == prompt
        before, after = (self.tokenizer.decode(some, skip_special_tokens=not special) for some in (prompt, ids))
        assert after.startswith(before)
        text: str = after[len(before) :]
        return text


def complete_tokenizer(checkpoint: Path) -> None:
    """Write the tokens into a tokenizer's files that its processor adds, as published files have them."""
    tokenizer = VisionProcessor(checkpoint)._processor.tokenizer
    if len(tokenizer) > len(AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)):
        tokenizer.save_pretrained(checkpoint)


def picture_text(checkpoint: Path, messages: Sequence[Message]) -> str:
    """The greedy answer of transformers' pipeline for images."""
    # Its image processor needs no torchvision, which pipelines ask for.
    vision = VisionProcessor(checkpoint)
    parts: dict[str, Any] = {"processor": vision._processor, "dtype": torch.float32, "device": "cpu"}
    asked: Any = pipeline("image-text-to-text", model=str(checkpoint), **parts)
    # The tokenizer's end token ends answers too, as in vLLM.
    ends = {asked.model.generation_config.eos_token_id, asked.processor.tokenizer.eos_token_id} - {None}
    options = {"do_sample": False, "eos_token_id": list(ends)}
    with vision._processor.remembering(vision, (), None):
        said = asked(messages, generate_kwargs=options, max_new_tokens=NEW_TOKENS, return_full_text=False)
    text: str = said[0]["generated_text"]
    return text


def differences(family: Family, checkpoint: Path, repository: Path) -> list[str]:
    """What the server answers otherwise than transformers' pipeline, and than the turns that the model was taught."""
    taught = list(lessons(family))
    chats = [Chat(messages) for messages in CHATS] if family.calls != HARMONY else []
    asked = [*chats, *(Chat(lesson.asked, lesson.tools, LESSON_TOKENS) for lesson in taught)]
    got, reference = answers(repository, asked), Reference(checkpoint)
    found = [_free(family, message, reference, chat) for chat, message in zip(chats, got, strict=False)]
    for lesson, message in zip(taught, got[len(chats) :], strict=True):
        found.append(_learned(lesson, reference))
        found.append(_read(lesson, message))
    said = "".join(_joined(message) for message in got)
    return [*filter(None, found), *([] if said.strip() else ["the model says nothing"])]


def _free(family: Family, message: Message, reference: Reference, chat: Chat) -> str:
    """How an answer to a chat differs; where the model happens to write markers of thoughts, apart from them."""
    got, wanted, known = _joined(message), reference.text(chat), _form_markers(family)
    if any(mark in reference.text(chat, special=True) for mark in known):
        got, wanted = _bare(got, known), _bare(wanted, known)
    return "" if got == wanted else f"{got!r} instead of {wanted!r}"


def _form_markers(family: Family) -> list[str]:
    if not family.thoughts:
        return []
    form = templates.reasoning_of(family.thoughts)
    return [form.begin, form.end, *form.heads, *form.closers, *form.special]


def _joined(message: Message) -> str:
    return (message.get("reasoning_content") or "") + (message["content"] or "")


def _bare(text: str, known: Sequence[str]) -> str:
    for mark in known:
        text = text.replace(mark, "")
    return "".join(text.split())


def _learned(lesson: Lesson, reference: Reference) -> str:
    """Whether transformers' pipeline says what was taught."""
    said = script(reference.tokenizer, lesson)[1]
    text = reference.text(Chat(lesson.asked, lesson.tools, LESSON_TOKENS), special=True)
    return "" if "".join(text.split()) == "".join(said.split()) else f"the model says {text!r} instead of {said!r}"


def _read(lesson: Lesson, message: Message) -> str:
    """How an answer differs from the turn that its template writes."""
    calls = [
        (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message.get("tool_calls") or ()
    ]
    got = (message.get("reasoning_content") or "").strip(), (message["content"] or "").strip(), calls
    if "tool_calls" in lesson.turn:
        wanted = "", "", [("add", ARGUMENTS)]
    else:
        wanted = THOUGHTS if "reasoning_content" in lesson.turn else "", ANSWER, []
    return "" if got == wanted else f"{got} instead of {wanted}"


def picture_differences(checkpoint: Path, repository: Path) -> list[str]:
    """What the server answers otherwise to a chat with two pictures."""
    pictures = [picture(40, 48, 1), picture(100, 33, 3)]
    texts = ["Compare", "with", "please."]
    got = answers(repository, [Chat([{"role": "user", "content": list(_parts(texts, pictures, data_url))}])])[0]
    wanted = picture_text(checkpoint, [{"role": "user", "content": list(_parts(texts, pictures, _pil))}])
    assert wanted.strip(), "the model says nothing"
    return [] if got["content"] == wanted else [f"{got['content']!r} instead of {wanted!r}"]


def _parts(texts: Sequence[str], pictures: Sequence[Pixels], part: Any) -> Iterator[dict[str, Any]]:
    for text, image in zip(texts, [*pictures, None], strict=True):
        yield {"type": "text", "text": text}
        if image is not None:
            yield part(image)


def _pil_image(image: Pixels) -> Image.Image:
    return Image.frombytes("RGB", (image.width, image.height), image.pixels)


def _pil(image: Pixels) -> dict[str, Any]:
    return {"type": "image", "image": _pil_image(image)}


def data_url(image: Pixels) -> dict[str, Any]:
    """A picture as a part of a message of OpenAI's."""
    written = io.BytesIO()
    _pil_image(image).save(written, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
