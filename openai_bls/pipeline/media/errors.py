"""Errors of images, with OpenAI's codes for them."""

from __future__ import annotations

from typing import Literal

from openai_bls.core.errors import InvalidRequestError

ImageCode = Literal[
    "empty_image_file",
    "failed_to_download_image",
    "image_file_not_found",
    "image_file_too_large",
    "image_parse_error",
    "image_too_large",
    "invalid_base64_image",
    "invalid_image_url",
    "unsupported_image_media_type",
]
"""Codes of OpenAI's API for images that cannot be used."""


class ImageError(Exception):
    """An image that cannot be used.

    Args:
        code: OpenAI's code.
        fault: end of the sentence that begins with the field's name, such as "is cut short".
    """

    def __init__(self, code: ImageCode, fault: str) -> None:
        super().__init__(fault)
        self.code: ImageCode = code
        self.fault = fault

    def of(self, param: str) -> InvalidRequestError:
        """The error for the client, of the field `param`."""
        return InvalidRequestError(f"'{param}' {self.fault}.", param=param, code=self.code)
