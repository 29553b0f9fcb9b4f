"""Query parameters of stored responses: checked, and what they add to a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.large_bodies import is_large, is_much, parsed
from openai_bls.api.common.queries import page, parse_query
from openai_bls.api.responses.items import Item, reasoning_text
from openai_bls.api.responses.kept import KeptItem
from openai_bls.api.responses.parsing import check_include
from openai_bls.api.responses.schema import ENCRYPTED, LOGPROBS, ItemQuery, PageQuery, RetrieveQuery
from openai_bls.api.responses.sealing import seal
from openai_bls.api.responses.store import Stored
from openai_bls.core.errors import InvalidRequestError

QueryT = TypeVar("QueryT", bound=ItemQuery)

_decode = msgspec.json.Decoder().decode


class _Background(msgspec.Struct):
    background: bool = False


_decode_background = msgspec.json.Decoder(_Background).decode


def is_background(response: bytes) -> bool:
    """True if a response, as JSON text, was made in the background."""
    return _decode_background(response).background


def parse_with_include(request: Request, schema: type[QueryT]) -> QueryT:
    """A query with the list `include`.

    Raises:
        InvalidRequestError: a parameter is unknown, or has a bad value.
    """
    given: dict[str, Any] = dict(request.query_params)
    # The second is how the official clients write a list.
    include = [*request.query_params.getlist("include"), *request.query_params.getlist("include[]")]
    check_include(include)
    given.pop("include[]", None)
    return parse_query({**given, "include": include}, schema)


def parse_retrieve(request: Request) -> RetrieveQuery:
    """The query of `GET /v1/responses/{response_id}`.

    Raises:
        InvalidRequestError: a parameter is unknown, has a bad value, or belongs to a stream and there is none.
    """
    query = parse_with_include(request, RetrieveQuery)
    if query.starting_after is not None and not query.stream:
        raise InvalidRequestError("'starting_after' is only allowed when 'stream' is true.", param="starting_after")
    return query


def check_included(query: RetrieveQuery, stored: Stored) -> None:
    """Refuse to include what the response was not made with, and cannot be given later.

    Raises:
        InvalidRequestError: there is such a thing.
    """
    for value in query.include or ():
        later = value == ENCRYPTED and not query.stream
        if value in (LOGPROBS, ENCRYPTED) and value not in stored.included and not later:
            raise InvalidRequestError(
                f"'{value}' can only be included if the response was created with it.", param="include"
            )


async def with_included(query: RetrieveQuery, response: bytes, key: str) -> bytes:
    """A response of an API key, as JSON text, with what is to be included."""
    if ENCRYPTED not in (query.include or ()):
        return response

    def shown() -> bytes:
        found: dict[str, Any] = _decode(response)
        found["output"] = included_items(found["output"], query.include)
        return encode(found)

    return await parsed(shown, large=is_large(response), key=key)


async def item_page(items: Sequence[KeptItem], query: PageQuery, key: str) -> msgspec.Raw:
    """JSON text of the page of items that a query asks for; only those of the page are decoded.

    Args:
        items: all items.
        query: query of the request.
        key: name of its API key.

    Raises:
        InvalidRequestError: there is no item `after`.
    """
    newest_first = query.order == "desc"
    chosen = page(items, lambda one: one, newest_first=newest_first, limit=query.limit, after=query.after)
    kept: list[KeptItem] = chosen["data"]

    def shown() -> bytes:
        return encode({**chosen, "data": included_items([one.item() for one in kept], query.include)})

    large = is_much(len(kept), sum(one.content_size for one in kept))
    return msgspec.Raw(await parsed(shown, large=large, key=key))


def included_items(items: Sequence[Item], include: Sequence[str] | None) -> list[Item]:
    """Items, with what is to be included; log-probabilities are in them where they were made."""
    if ENCRYPTED not in (include or ()):
        return list(items)
    return [
        {**item, "encrypted_content": seal("reasoning", reasoning_text(item))} if item["type"] == "reasoning" else item
        for item in items
    ]
