"""Images of a chat: files as parts of a message."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from openai_bls.launcher.errors import LaunchError

MAX_BYTES = 20 * 1024 * 1024
"""Largest file, in bytes: the default of the server's own limit."""


def image_part(path: Path) -> dict[str, Any]:
    """The part of a message that carries the image in a file.

    Raises:
        LaunchError: it cannot be read, is too large, or no image that a server takes.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}") from None
    kind = _kind(data)
    if kind is None:
        raise LaunchError(f"{path} is no PNG, JPEG, WebP or GIF image")
    if len(data) > MAX_BYTES:
        raise LaunchError(f"{path} has more than {MAX_BYTES} bytes")
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _kind(data: bytes) -> str | None:
    """Subtype of the image's media type, by its first bytes."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    starts = {b"\x89PNG\r\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
    return next((kind for start, kind in starts.items() if data.startswith(start)), None)
