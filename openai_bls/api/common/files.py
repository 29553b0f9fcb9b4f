"""Files in JSON: base64, by itself or as a `data:` URI."""

from __future__ import annotations

import base64
import binascii

from openai_bls.api.common.large_bodies import let_go
from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.media.decode_worker import plain_base64

# Characters that are decoded in a tenth of a millisecond.
_SLICE = 128 * 1024
_MAX_HEAD = 256


def file_of_json(text: str, param: str) -> bytes:
    """Bytes of a file; lets other threads run again and again.

    Args:
        text: base64, or a `data:` URI with base64.
        param: field of the request.

    Raises:
        InvalidRequestError: it is neither.
    """
    start = 0
    if text[:5].lower() == "data:":
        start = text.find(",", 0, _MAX_HEAD) + 1
        if not start or not text[: start - 1].lower().endswith(";base64"):
            raise InvalidRequestError(f"'{param}' is no data: URI with base64.", param=param)
    pieces: list[bytes] = []
    try:
        rest, is_ended = b"", False
        for at in range(start, len(text), _SLICE):
            part, is_last = rest + text[at : at + _SLICE].encode("ascii"), at + _SLICE >= len(text)
            # An escape that the slice cuts is left to the next one.
            cut = len(part) if is_last or b"%" not in part[-2:] else part.rindex(b"%", len(part) - 2)
            plain = plain_base64(part[:cut])
            whole = len(plain) if is_last else len(plain) // 4 * 4
            if is_ended and plain:
                raise binascii.Error
            piece = base64.b64decode(plain[:whole], validate=True)
            # Padding ends the file; only line ends may follow.
            is_ended = is_ended or len(piece) < whole // 4 * 3
            pieces.append(piece)
            rest = plain[whole:] + part[cut:]
            let_go()
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"'{param}' is not valid base64.", param=param) from None
    return b"".join(pieces)
