"""Images on their way from a request to an engine: as the request names them, decoded, and in their prompt."""

from __future__ import annotations

from typing import Literal

import msgspec

Modality = Literal["text", "image"]
"""Kind of content that a model takes in a prompt."""

ImageDetail = Literal["auto", "low", "high", "original"]


class ImageSource(msgspec.Struct, frozen=True):
    """An image as a request names it, not yet loaded."""

    url: str
    """A `data:` URI, or an http or https URL; empty with `file_id`."""
    param: str
    """The request's field, in OpenAI's notation, e.g. `messages[0].content[1].image_url`."""
    detail: ImageDetail = "auto"
    file_id: str = ""
    """Id of an uploaded file, in the place of `url`."""
    base64: memoryview | None = None
    """Base64 of a `data:` URI that `url` is only the head of: a large one is left where it came."""


class Image(msgspec.Struct, frozen=True):
    """A decoded image: nothing after the loader sees a file format."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    pixels: bytes
    """RGB, 8 bits each, row by row from the top: shape [height, width, 3]."""
    uuid: str
    """Hash of size and pixels in hexadecimal digits: equal images, and only they, share a cache entry."""


class MediaPrompt(msgspec.Struct, frozen=True):
    """Images of a prompt and its forms before they are expanded, for engines that expand them by themselves."""

    images: tuple[Image, ...]
    """Decoded images, in the order of their placeholders in the prompt."""
    text: str
    """Rendered chat template, with the placeholders that the template writes."""
    token_ids: tuple[int, ...]
    """Token ids of `text`. `GenerationRequest.prompt_token_ids` has in the place of each placeholder as many tokens as
    the model reads for the image."""
    image_tokens: int = 0
    """Tokens of `prompt_token_ids` that stand for images."""
