"""Prompts with images: where the chat template puts them, and what tokens the model reads in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.manifest import EngineLoadError
from openai_bls.engines.images.processor import ImageError, VisionProcessor
from openai_bls.triton_models.preprocessing import rendering

Render = Callable[[PromptRequest, float], str]
"""Text of the conversation in a request, by its chat template, in so many seconds of CPU time."""

_PROBES = ("probe one", "probe two")
_MOST_TEMPLATES = 64
"""Templates of requests whose kind of contents is kept."""


class ImagePrompt(NamedTuple):
    """A prompt with images."""

    text: str
    """Rendered template, with a placeholder for each image."""
    token_ids: list[int]
    """Each image expanded."""
    image_tokens: int
    """Tokens of `token_ids` that stand for images."""


class ImagePrompts:
    """Prompts with images of one model. Any thread may use it."""

    def __init__(self, folder: Path, tokenizer: Any, render: Render) -> None:
        """Load the processor.

        Args:
            folder: folder with the files of the tokenizer and of the processor.
            tokenizer: tokenizer of transformers in `folder`.
            render: renders a request's messages.

        Raises:
            EngineLoadError: the processor cannot be loaded here.
        """
        self._processor = VisionProcessor(folder, tokenizer)
        own = self._processor.chat_template
        self.template = own if isinstance(own, str) else None
        """Chat template of the processor; None if it has none, or several."""
        self.is_quick = self._processor.takes_blanks
        """A prompt takes no longer than one without images."""
        self._render = render
        self._takes_parts: dict[str, bool] = {}

    def prepare(self, request: PromptRequest, cpu_s: float = rendering.CPU_S) -> ImagePrompt:
        """The prompt of a conversation with images.

        Args:
            request: request with messages and the sizes of their images.
            cpu_s: most CPU time of a rendering, in seconds.

        Raises:
            InvalidRequestError: the messages or the images cannot be made a prompt of.
            CpuLimitError: the chat template takes longer.
        """
        for text in _texts([request.messages, request.tools, request.documents]):
            if found := next((name for name in self._processor.reserved if name in text), None):
                raise InvalidRequestError(
                    f"A text of the request holds {found!r}, which stands for an image in this model's prompts: leave "
                    "it out, or write it in another way.",
                    param="messages",
                )
        request = msgspec.structs.replace(request, chat_template=request.chat_template or self.template)
        if not self._parts_are_rendered(request, cpu_s):
            messages = [self._with_string(message) for message in request.messages or []]
            request = msgspec.structs.replace(request, messages=messages)
        text = self._render(request, cpu_s)
        count, wanted = text.count(self._processor.image_token), len(request.image_sizes)
        if count != wanted:
            raise InvalidRequestError(
                f"The model's chat template has places for {count} of the {wanted} images: it does not take images in "
                "all of these messages.",
                param="messages",
                code="unsupported_content",
            )
        special = request.add_special_tokens is True
        try:
            token_ids = self._processor.expand(text, request.image_sizes, add_special_tokens=special)
        except ImageError as error:
            param, what = "messages", "The images"
            if error.at is not None:
                param = f"images[{error.at}]"
                what = f"'{param}'"
            raise InvalidRequestError(f"{what} cannot be used: {error}.", param=param, code=error.code) from None
        return ImagePrompt(text, token_ids, self._processor.count(token_ids))

    def _parts_are_rendered(self, request: PromptRequest, cpu_s: float) -> bool:
        """True if the template of a request takes contents as lists, and writes the placeholder of an image itself."""
        key = request.chat_template or ""
        known = self._takes_parts.get(key)
        if known is not None:
            return known
        first, second = ({"type": "text", "text": probe} for probe in _PROBES)
        content = [first, {"type": "image"}, second]
        probe = PromptRequest(messages=[{"role": "user", "content": content}], chat_template=request.chat_template)
        try:
            text = self._render(probe, cpu_s)
        except InvalidRequestError:
            text = ""
        # A template that puts any content between its tokens writes the list as Python does.
        found = text.count(self._processor.image_token) == 1 and "{'type'" not in text
        found = found and all(text.count(one) == 1 for one in _PROBES)
        if len(self._takes_parts) < _MOST_TEMPLATES:
            self._takes_parts[key] = found
        return found

    def _with_string(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with its content as a string: each image on a separate line, as such models were trained."""
        content = message.get("content")
        if not isinstance(content, list):
            return message
        written: list[str] = []
        lines = False
        for part in content:
            image = part.get("type") == "image"
            if written and (image or lines):
                written.append("\n")
            written.append(self._processor.image_token if image else part.get("text", ""))
            lines = image
        return {**message, "content": "".join(written)}


class LazyImagePrompts:
    """`ImagePrompts` that are loaded when the first image comes, or by `load`."""

    def __init__(self, make: Callable[[], ImagePrompts]) -> None:
        self._make = make
        self._made: ImagePrompts | None = None

    @property
    def template(self) -> str | None:
        """Chat template of the processor, once it is loaded."""
        return None if self._made is None else self._made.template

    @property
    def is_quick(self) -> bool:
        """True if they are loaded, and a prompt takes no longer than one without images."""
        return self._made is not None and self._made.is_quick

    def load(self) -> ImagePrompts:
        """Load the image prompts once.

        Raises:
            InvalidRequestError: they cannot be loaded.
        """
        if self._made is None:
            try:
                self._made = self._make()
            except EngineLoadError as error:
                raise InvalidRequestError(
                    f"This model takes no images here: {error}.", param="messages", code="unsupported_content"
                ) from None
        return self._made


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _texts(name)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
