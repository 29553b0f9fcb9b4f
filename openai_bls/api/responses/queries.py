"""Query parameters of stored responses: checked, and what they add to a response."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.requests import Request

from openai_bls.api.common.encoding import encode
from openai_bls.api.responses.items import reasoning_text
from openai_bls.api.responses.parsing import check_include
from openai_bls.api.responses.schema import ENCRYPTED
from openai_bls.api.responses.sealing import seal
from openai_bls.api.responses.store import Stored
from openai_bls.core.errors import InvalidRequestError

_decode = msgspec.json.Decoder().decode


class _Background(msgspec.Struct):
    background: bool = False


_decode_background = msgspec.json.Decoder(_Background).decode


def is_background(response: bytes) -> bool:
    """True if a response, as JSON text, was made in the background."""
    return _decode_background(response).background


def check_query(request: Request, *known: str) -> None:
    """Refuse query parameters other than these.

    Raises:
        InvalidRequestError: there is one.
    """
    for name in request.query_params:
        if name not in known:
            raise InvalidRequestError(f"The query parameter '{name}' is not supported here.", param=name)


class RetrieveQuery(msgspec.Struct, frozen=True):
    """Query of `GET /v1/responses/{response_id}`."""

    include: list[str]
    stream: bool
    starting_after: int
    """Number of the last event that the client has; -1 is none."""

    @classmethod
    def of(cls, request: Request) -> RetrieveQuery:
        """The query of a request.

        Raises:
            InvalidRequestError: a parameter is unknown, has a bad value, or belongs to a stream and there is none.
        """
        query = request.query_params
        check_query(request, "include", "include[]", "include_obfuscation", "starting_after", "stream")
        include = [*query.getlist("include"), *query.getlist("include[]")]
        check_include(include)
        stream = _flag(query, "stream")
        # Harmless: there is no padding to leave out.
        _flag(query, "include_obfuscation")
        after = query.get("starting_after")
        if after is not None and not re.fullmatch(r"[0-9]{1,9}", after):
            raise InvalidRequestError("'starting_after' must be the number of an event.", param="starting_after")
        if after is not None and not stream:
            raise InvalidRequestError("'starting_after' is only allowed when 'stream' is true.", param="starting_after")
        return cls(include, stream, -1 if after is None else int(after))

    def check_included(self, stored: Stored) -> None:
        """Refuse to include what the response was not made with, and cannot be given later.

        Raises:
            InvalidRequestError: there is such a thing.
        """
        for value in self.include:
            later = value == ENCRYPTED and not self.stream
            if value not in stored.included and not later:
                raise InvalidRequestError(
                    f"'{value}' can only be included if the response was created with it.", param="include"
                )

    def with_included(self, response: bytes) -> bytes:
        """A response, as JSON text, with what is to be included."""
        if ENCRYPTED not in self.include:
            return response
        found: dict[str, Any] = _decode(response)
        for item in found["output"]:
            if item["type"] == "reasoning":
                item["encrypted_content"] = seal("reasoning", reasoning_text(item))
        return encode(found)


def _flag(query: Any, name: str) -> bool:
    value = query.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidRequestError(f"'{name}' must be true or false.", param=name)
    return bool(value == "true")
