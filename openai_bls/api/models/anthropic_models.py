"""Models in the form of Anthropic's API, for requests with the header `anthropic-version`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_bls.api.common.queries import parse_query
from openai_bls.api.http.handlers import JsonResponse
from openai_bls.core.errors import ApiError, InvalidRequestError

HEADER = "anthropic-version"

_TYPES = {400: "invalid_request_error", 404: "not_found_error"}


class Query(msgspec.Struct):
    """Query of the list, with the header `anthropic-version`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    """Models of the page."""
    after_id: str | None = None
    """Model after which the page begins."""
    before_id: str | None = None
    """Model before which the page ends."""
    lifecycle: list[Literal["active", "deprecated", "retired"]] | None = None
    """Every served model is `active`."""
    beta: bool | None = None
    """No effect: the SDK's beta client sends it."""


def asked_for(request: Request) -> bool:
    """True for a request of a client of Anthropic's."""
    return HEADER in request.headers


def answered(make: Callable[[], dict[str, Any]]) -> Response:
    """The answer, or its error in Anthropic's form."""
    try:
        return JsonResponse(make())
    except ApiError as error:
        kind = _TYPES.get(error.status, "api_error")
        body = {"type": "error", "error": {"type": kind, "message": error.message}}
        return JsonResponse(body, status_code=error.status, headers=error.headers)


def model(card: dict[str, Any]) -> dict[str, Any]:
    """A model by its card in OpenAI's form."""
    created = datetime.fromtimestamp(card["created"], timezone.utc)
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": card["max_model_len"],
    }


def listed(request: Request, cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The page of models that a request asks for.

    Raises:
        InvalidRequestError: a query parameter is unknown or has a bad value, or names no model.
    """
    given: dict[str, Any] = dict(request.query_params)
    lifecycle = [*request.query_params.getlist("lifecycle"), *request.query_params.getlist("lifecycle[]")]
    given.pop("lifecycle[]", None)
    query = parse_query({**given, "lifecycle": lifecycle or None}, Query)
    if query.after_id is not None and query.before_id is not None:
        raise InvalidRequestError("'after_id' and 'before_id' cannot be used together.", param="before_id")
    shown = [model(card) for card in cards] if "active" in (query.lifecycle or ("active",)) else []
    ids = [one["id"] for one in shown]
    for name in ("after_id", "before_id"):
        named = getattr(query, name)
        if named is not None and named not in ids:
            raise InvalidRequestError(f"'{name}' is {named[:100]!r}, which is not in this list.", param=name)
    if query.before_id is not None:
        end = ids.index(query.before_id)
        start = max(0, end - query.limit)
        more = start > 0
    else:
        start = 0 if query.after_id is None else ids.index(query.after_id) + 1
        end = start + query.limit
        more = end < len(ids)
    data = shown[start:end]
    return {
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }
