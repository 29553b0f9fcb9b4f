"""Checks of a request by its head alone, before anything of its body is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request

from openai_bls.api.http.connection.stream_connection import EXTENSION
from openai_bls.core.errors import AuthenticationError, InvalidRequestError
from openai_bls.core.keys.api_keys import ApiKeys, bearer

Head = Mapping[bytes, bytes]
"""Headers of a request by their names in small letters, of several of one name the first."""


def require_certificate(request: Request) -> None:
    """Refuse a request over a connection without a client certificate.

    Raises:
        AuthenticationError: there is none.
    """
    connection = request.scope.get("extensions", {}).get(EXTENSION)
    if connection is None or not connection.has_client_certificate:
        raise AuthenticationError(
            "A client certificate is missing: this server asks for one (ssl_ca_certs).",
            code="client_certificate_required",
        )


def authenticated(head: Head, api_keys: ApiKeys) -> str:
    """Name of the request's key.

    Raises:
        AuthenticationError: it has none, or none of these.
    """
    # Anthropic's clients send it by itself.
    given = bearer(_text(head, b"authorization")) or _text(head, b"x-api-key").strip()
    return api_keys.check(given, "send it as 'Authorization: Bearer <key>'.")


def check_origin(head: Head, origins: Sequence[str]) -> None:
    """Refuse what a browser sends for any web page without asking first: JSON that is not declared as such, and forms
    of pages that are neither the server's own nor among `origins`.

    Raises:
        InvalidRequestError: it is such a request.
    """
    kind = head.get(b"content-type", b"").partition(b";")[0].strip().lower()
    is_known = "*" in origins or _text(head, b"origin") in origins
    if kind == b"multipart/form-data" and (is_known or head.get(b"sec-fetch-site") == b"same-origin"):
        return
    if kind != b"application/json":
        error = InvalidRequestError("A request of a web page ('Origin') must have the content type 'application/json'.")
        error.status = 415
        raise error


def _text(head: Head, name: bytes) -> str:
    return head.get(name, b"").decode("latin-1")
