"""Opaque texts of `encrypted_content`: what the server is given back later, encoded with a version and a checksum.

Encoded, not encrypted: a reasoning item shows its text in `content` as well, and a client may send any summary as a
message of its own, so a key would protect nothing. Without one the text outlives the server and is read by every
instance of it. Nothing is kept on the server.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Literal

from openai_bls.core.errors import InvalidRequestError

Kind = Literal["reasoning", "compaction"]

_VERSION = "obls1"
_CHECKSUM_BYTES = 16


def seal(kind: Kind, text: str) -> str:
    """The opaque form of a text of that kind."""
    # What a client has sent may hold half a surrogate pair.
    content = text.encode("utf-8", "surrogatepass")
    return f"{_VERSION}.{base64.urlsafe_b64encode(_checksum(kind, content) + content).decode()}"


def is_sealed_here(sealed: str) -> bool:
    """True for the opaque form of a text, whole or damaged, and not for another service's."""
    return sealed.partition(".")[0] == _VERSION


def unseal(kind: Kind, sealed: str, param: str) -> str:
    """The text in its opaque form.

    Raises:
        InvalidRequestError: it is not of this server and of that kind, or not whole; `param` is its place.
    """
    version, _, encoded = sealed.partition(".")
    if version == _VERSION:
        try:
            raw = base64.b64decode(encoded, altchars=b"-_", validate=True)
            content = raw[_CHECKSUM_BYTES:]
            if raw[:_CHECKSUM_BYTES] == _checksum(kind, content):
                return content.decode("utf-8", "surrogatepass")
        except (binascii.Error, ValueError):
            pass
    raise InvalidRequestError(
        f"'{param}' cannot be read: it must be exactly what this server gave for an item of type '{kind}'. The content "
        "that another service has encrypted is for that service alone.",
        param=param,
        code="invalid_encrypted_content",
    )


def _checksum(kind: Kind, content: bytes) -> bytes:
    return hashlib.sha256(f"{_VERSION}.{kind}.".encode() + content).digest()[:_CHECKSUM_BYTES]
