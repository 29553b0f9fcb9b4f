"""Pictures for requests, good ones and bad ones."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def picture(width: int = 4, height: int = 3, color: tuple[int, int, int] = (200, 30, 10), form: str = "PNG") -> bytes:
    """The file of an image of one color."""
    return encoded(Image.new("RGB", (width, height), color), form)


def data_uri(data: bytes, kind: str = "image/png") -> str:
    """The data: URI of a file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, pixels: bytes = b"", *, kind: int = 2) -> bytes:
    """A PNG that says that size, whatever `pixels`, its compressed data, hold."""
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def png_bomb(size: int = 200 * 1024 * 1024) -> bytes:
    """A small PNG whose data become `size` bytes, for an image of 4000 x 4000."""
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    packed = b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()
    return png(4000, 4000, packed)


def slow_png(chunks: int) -> bytes:
    """A picture of one pixel behind so many empty chunks, which take Pillow some microseconds each."""
    whole = png(1, 1, zlib.compress(bytes(4)))
    at = whole.index(b"IDAT") - 4
    return whole[:at] + _chunk(b"abCd", b"") * chunks + whole[at:]


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><path d="M0 0"/></svg>'
HTML = b"<!DOCTYPE html><html><body>Not found</body></html>"

BAD_FILES: dict[str, tuple[bytes, str]] = {
    "a truncated JPEG": (picture(64, 64, form="JPEG")[:400], "image_parse_error"),
    "a truncated PNG": (picture(64, 64)[:70], "image_parse_error"),
    "a JPEG of noise": (b"\xff\xd8\xff\xe0" + bytes(range(256)) * 4, "image_parse_error"),
    "100,000 x 100,000 pixels": (png(100_000, 100_000), "image_too_large"),
    "no pixels at all": (png(10, 10), "image_parse_error"),
    "pixels that are noise": (png(10, 10, bytes(1000)), "image_parse_error"),
    "an SVG": (SVG, "unsupported_image_media_type"),
    "HTML": (HTML, "unsupported_image_media_type"),
    "a BMP": (picture(form="BMP"), "unsupported_image_media_type"),
    "a TIFF": (picture(form="TIFF"), "unsupported_image_media_type"),
    "an animated GIF": (
        encoded(Image.new("RGB", (4, 4)), "GIF", save_all=True, append_images=[Image.new("RGB", (4, 4), "red")]),
        "unsupported_image_media_type",
    ),
    "nothing": (b"", "empty_image_file"),
}
"""Name of a bad file → its bytes, and the code that refuses it."""
