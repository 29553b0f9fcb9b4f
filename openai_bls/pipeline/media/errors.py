"""Errors of images, with OpenAI's codes for them, and of audio."""

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


AudioCode = Literal[
    "audio_file_too_large",
    "audio_parse_error",
    "audio_too_long",
    "empty_audio_file",
    "unsupported_audio_media_type",
]
"""Codes for audio that cannot be used, after those of images."""


class MediaError(Exception):
    """An image or audio that cannot be used.

    Args:
        code: code of the API.
        fault: end of the sentence that begins with the field's name, such as "is cut short".
    """

    def __init__(self, code: str, fault: str) -> None:
        super().__init__(fault)
        self.code = code
        self.fault = fault

    def of(self, param: str) -> InvalidRequestError:
        """The error for the client, of the field `param`."""
        return InvalidRequestError(f"'{param}' {self.fault}.", param=param, code=self.code)


class ImageError(MediaError):
    """An image that cannot be used."""

    code: ImageCode

    def __init__(self, code: ImageCode, fault: str) -> None:
        super().__init__(code, fault)


class AudioError(MediaError):
    """Audio that cannot be used."""

    code: AudioCode

    def __init__(self, code: AudioCode, fault: str) -> None:
        super().__init__(code, fault)
