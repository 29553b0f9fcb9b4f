"""Job of a decoder process (`core/processes/worker.py`): from an encoded image to RGB pixels.

With nothing of openai_bls imported, a process starts in a tenth of a second. A job is a `JOB` head and its bytes. The
answer is `S` and the size, upon which the reader says `G` (go on) or anything else; then `P`, the SHA-256 of size and
pixels, and the pixels. Or it is `E`, a code, and what is wrong with the image.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import importlib
import io
import struct
from typing import Any, BinaryIO

JOB = struct.Struct("<QQQIB")
"""Head of a job: bytes that follow, most bytes of the image, most pixels, side of the square to scale down to (0 is
none), 1 if it is base64."""
SIZE = struct.Struct("<II")
"""Width and height in pixels."""
ERROR = struct.Struct("<HH")
"""Bytes of the code and of the sentence's end."""
MODULES = (
    *("GifImagePlugin", "JpegImagePlugin", "MpoImagePlugin", "PngImagePlugin", "TiffImagePlugin", "WebPImagePlugin"),
    *("ImageChops", "ImageOps", "ImagePalette", "ImageSequence"),
)
# What the lifting of base64 out of a body leaves as it is (`api/common/lifted.py`).
_JSON_ESCAPES = ((rb"\n", b""), (rb"\r", b""), (rb"\t", b""), (rb"\/", b"/"))


class RefusedError(Exception):
    """An image that cannot be used: code and end of the sentence."""


def plain_base64(text: bytes) -> bytes:
    """Base64 as people have it without what is none: line ends, the escapes of a URL, and JSON's where it has any.

    Raises:
        binascii.Error: an escape is none.
    """
    if b"\\" in text:
        for escape, character in _JSON_ESCAPES:
            text = text.replace(escape, character)
    if b"%" in text:
        first, *others = text.split(b"%")
        text = first + b"".join(binascii.unhexlify(part[:2]) + part[2:] for part in others)
    return text.translate(None, b" \t\n\f\r")


def from_base64(text: bytes) -> bytes:
    """Bytes of base64 as people have it.

    Raises:
        binascii.Error: it is none.
    """
    return base64.b64decode(plain_base64(text), validate=True)


def opened(data: bytes, max_pixels: int) -> Any:
    """The image in `data`, of which no more than the head has been decoded.

    Raises:
        RefusedError: it is none, too large, or animated.
    """
    from PIL.GifImagePlugin import GifImageFile
    from PIL.JpegImagePlugin import jpeg_factory
    from PIL.PngImagePlugin import PngImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    if not data:
        raise RefusedError("empty_image_file", "is empty")
    # Not PIL's registry, which would look for a format among all that it has.
    stream = io.BytesIO(data)
    image: Any
    if data.startswith(b"\x89PNG\r\n"):
        image = PngImageFile(stream)
    elif data.startswith(b"\xff\xd8\xff"):
        image = jpeg_factory(stream)
    elif data.startswith((b"GIF87a", b"GIF89a")):
        image = GifImageFile(stream)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        image = WebPImageFile(stream)
    else:
        raise RefusedError("unsupported_image_media_type", "is no PNG, JPEG, WebP or GIF image")
    width, height = image.size
    if width * height > max_pixels:
        raise RefusedError(
            "image_too_large",
            f"has {width} x {height} pixels; at most {max_pixels} are taken (max_image_pixels)",
        )
    # Photographs of several pictures (MPO, a JPEG) are stills all the same.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise RefusedError("unsupported_image_media_type", "is animated; send one of its frames as a still image")
    return image


def as_rgb(image: Any, side: int) -> Any:
    """Upright pixels on white, as vLLM has them; for images without transparency transformers' load_image, too.

    Args:
        image: image of PIL.
        side: side of the square to scale down to; 0 leaves the size.
    """
    from PIL import Image, ImageOps

    image.load()
    # A bad note on the orientation does not make a bad image.
    with contextlib.suppress(Exception):
        image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        background = Image.new("RGB", image.size, (255, 255, 255))
        background.paste(image, mask=image.getchannel("A"))
        image = background
    elif image.mode != "RGB":
        image = image.convert("RGB")
    if side:
        image.thumbnail((side, side), Image.Resampling.BICUBIC)
    return image


def answer(source: BinaryIO, target: BinaryIO) -> bool:
    """Do one job; False at the end of the input."""
    head = source.read(JOB.size)
    if len(head) < JOB.size:
        return False
    length, max_bytes, max_pixels, side, is_base64 = JOB.unpack(head)
    data = source.read(length)
    if len(data) < length:
        return False
    try:
        if is_base64:
            try:
                data = from_base64(data)
            except binascii.Error:
                raise RefusedError("invalid_base64_image", "is not valid base64") from None
        if len(data) > max_bytes:
            raise RefusedError("image_file_too_large", f"has more than {max_bytes} bytes (max_image_bytes)")
        image = opened(data, max_pixels)
        # Not of its EXIF, for which a PNG is decoded whole.
        target.write(b"S" + SIZE.pack(*image.size))
        target.flush()
        if source.read(1) != b"G":
            return True
        image = as_rgb(image, side)
        pixels = image.tobytes()
        size = SIZE.pack(*image.size)
        digest = hashlib.sha256(size)
        digest.update(pixels)
        target.write(b"P" + size + digest.digest())
        target.write(pixels)
    except RefusedError as refused:
        _refuse(target, *refused.args)
    except MemoryError:
        _refuse(target, "image_too_large", "takes too much memory to decode")
    except Exception:
        # Whatever a decoder says of a broken file: OSError, SyntaxError, ValueError, struct.error, ...
        _refuse(target, "image_parse_error", "is cut short or damaged")
    target.flush()
    return True


def _refuse(target: BinaryIO, code: str, fault: str) -> None:
    target.write(b"E" + ERROR.pack(len(code), len(fault)) + code.encode() + fault.encode())


def load() -> None:
    """Import what PIL imports where it is needed: before there is an image, and limits."""
    import warnings

    for name in MODULES:
        importlib.import_module(f"PIL.{name}")
    from PIL import Image

    # The size is checked against the job's own limit.
    Image.MAX_IMAGE_PIXELS = None
    warnings.simplefilter("ignore")
