"""Images in the preparation of a request: whether its model takes them, and what preprocessing and the engine get."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec

from openai_bls.core.engine_types import PromptRequest, PromptResult
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.media import Image, ImageSource, MediaPrompt
from openai_bls.core.request import ValidRequest
from openai_bls.pipeline.models.registry import ServedModel

_IMAGE = re.compile(r"images\[([0-9]{1,9})\]")

LoadImages = Callable[[tuple[ImageSource, ...]], Awaitable[tuple[Image, ...]]]
"""Loads the images of a request; raises ApiError."""


def check_images(request: ValidRequest, model: ServedModel) -> None:
    """Refuse images that the model does not take, before any is loaded.

    Raises:
        InvalidRequestError: `param` names the first image at fault, or the field that goes with none.
    """
    info, images = model.info, request.images
    if not info.max_images:
        raise InvalidRequestError(
            f"'{images[0].param}' is an image; the model {info.model_name!r} takes text only.",
            param=images[0].param,
            code="unsupported_content",
        )
    if len(images) > info.max_images:
        param = images[info.max_images].param
        raise InvalidRequestError(
            f"'{param}' is one image too many: the request has {len(images)}; the model {info.model_name!r} takes "
            f"{info.max_images}.",
            param=param,
            code="too_many_images",
        )
    if request.truncate_prompt_tokens is not None:
        raise InvalidRequestError(
            "'truncate_prompt_tokens' cannot be used with images: it might cut one in two.",
            param="truncate_prompt_tokens",
            code="unsupported_parameter",
        )


def with_sizes(prompt: PromptRequest, images: tuple[Image, ...]) -> PromptRequest:
    """A request to preprocessing that tells it the sizes of the images."""
    if not images:
        return prompt
    return msgspec.structs.replace(prompt, image_sizes=[(image.width, image.height) for image in images])


@contextmanager
def named_images(request: ValidRequest) -> Iterator[None]:
    """Errors raised inside that are an image's, `images[0]` in preprocessing, named as the request has it."""
    try:
        yield
    except InvalidRequestError as error:
        found = _IMAGE.fullmatch(error.param or "")
        if found is not None and int(found[1]) < len(request.images):
            param = request.images[int(found[1])].param
            error.message = error.message.replace(f"'{error.param}'", f"'{param}'", 1)
            error.param = param
        raise


def media_prompt(images: tuple[Image, ...], result: PromptResult) -> MediaPrompt:
    """The images of a prompt and what preprocessing says of it."""
    return MediaPrompt(images, result.media_text, tuple(result.media_token_ids), result.image_tokens)
