"""Refusals of requests that are not read to their end: by their head, and as the answer that ends a connection."""

from __future__ import annotations

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from openai_bls.api.common.encoding import encode
from openai_bls.core.errors import ApiError, InvalidRequestError

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's path and headers."""
MAX_HEADERS = 256
"""Headers of a request."""


class RefusalError(InvalidRequestError):
    """A request that is not read to its end."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def refusal(error: ApiError) -> Response:
    """A refusal as the answer that a connection gives in its turn."""
    headers = {"connection": "close", **error.headers}
    return Response(encode(error.body()), error.status, headers, media_type="application/json")


def last_response(error: ApiError) -> bytes:
    """The response with an error that ends a connection."""
    body = encode(error.body())
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
    more = "".join(f"{name.lower()}: {value}\r\n" for name, value in error.headers.items()).encode()
    return b"".join((bytes(STATUS_LINE[error.status]), head, more, b"\r\n", body))


class StoppedError(Exception):
    """End of parsing, from a callback of the parser."""


def announces_body(name: bytes, value: bytes) -> bool:
    """True if a header says that a body follows."""
    return name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)


def body_of(headers: list[tuple[bytes, bytes]]) -> tuple[int, bool]:
    """Declared bytes of a body, which the parser has checked, and whether the body is chunked."""
    for name, value in headers:
        if name == b"content-length":
            return int(value), False
        if name == b"transfer-encoding":
            return 0, True
    return 0, False


def size_problem(size: int, headers: int) -> RefusalError | None:
    """Refusal of a head of so many bytes and headers; None if these are not too many."""
    if size <= MAX_HEAD_BYTES and headers <= MAX_HEADERS:
        return None
    return RefusalError(
        431, f"The head of the request is larger than {MAX_HEAD_BYTES} bytes, or has more than {MAX_HEADERS} headers."
    )


def head_problem(url: bytes, headers: list[tuple[bytes, bytes]], http_version: str) -> ApiError | None:
    """Refusal of a head by its version of HTTP, its size, RFC 9112, 3.2 (Host) and RFC 9110, 10.1.1 (Expect); None if
    there is nothing against it."""
    if http_version not in ("1.0", "1.1"):
        # A line without a version is one of HTTP/0.9, whose answers have no head.
        status = 400 if http_version == "0.9" else 505
        return RefusalError(status, "The request line must end in HTTP/1.1 or HTTP/1.0.")
    size, hosts, is_odd = len(url), 0, False
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts += 1
        elif name == b"expect" and value.strip().lower() != b"100-continue":
            is_odd = True
    if (error := size_problem(size, len(headers))) is not None:
        return error
    if hosts > 1 or (not hosts and http_version == "1.1"):
        return RefusalError(400, f"The request has {hosts} Host headers: exactly one is needed.")
    return RefusalError(417, "The only expectation that is met is 100-continue.") if is_odd else None
