"""Static files of the web pages, in memory, and the headers that hold a browser to them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""File suffix → content type; files with other suffixes, such as licences, are not served."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "worker-src 'self'",
        "style-src 'self'",
        # Pictures that a visitor attaches are shown from the memory of the page.
        "img-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Text becomes HTML nowhere but in DOMPurify, and an address a script only where the colours of code start.
        "require-trusted-types-for 'script'",
        "trusted-types dompurify workers",
    )
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # The browser keeps a file, and asks each time whether it is still the same: a new release is seen at once.
    "cache-control": "no-cache",
}
"""Headers of every page and file."""


@dataclass(frozen=True)
class StaticFile:
    """File as it is sent."""

    body: bytes
    media_type: str

    @functools.cached_property
    def etag(self) -> str:
        """Entity tag: a hash of the content."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'

    def response(self, request: Request) -> Response:
        """The file, or 304 if the browser has it."""
        headers = HEADERS | {"etag": self.etag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self.etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers | {"content-type": self.media_type})


@functools.cache
def static_files() -> Mapping[str, StaticFile]:
    """Path below `FOLDER`, with slashes → its file. Read once, when a browser first asks for one."""
    return {
        path.relative_to(FOLDER).as_posix(): StaticFile(path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in FOLDER.rglob("*")
        if path.suffix in MEDIA_TYPES
    }
