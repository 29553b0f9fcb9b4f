"""Key, trace, id and timeout of a request on Triton's endpoints: request parameters, or headers forwarded as such."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from openai_bls.core.keys.api_keys import ApiKeys, bearer
from openai_bls.core.request import TIMEOUT_HEADER, header_timeout

KEY_PARAMETERS = frozenset({"api_key", "authorization"})
"""Request parameters that hold a key; the case of a header's name is the client's. Never fields of a request."""

TRACE_PARAMETERS = frozenset({"traceparent", "tracestate", "baggage"})
"""Request parameters that hold the context of a trace, as W3C's headers do. Never fields of a request."""

STOP_WITHOUT_ID = (
    "'stop' needs the id of the request to stop: give both requests the same \"id\" in their bodies, or the same "
    "request id over gRPC; Triton's generate does not hand on the header triton-request-id."
)

HEADER_PARAMETERS = KEY_PARAMETERS | TRACE_PARAMETERS | {TIMEOUT_HEADER}
"""Request parameters that are no fields of a request."""

_REMEDY = "give it as the request parameter 'api_key' or, over gRPC, as the header 'authorization: Bearer <key>'."

_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""The start of W3C's header `traceparent`, with the id of the trace."""


def with_trace(parameters: dict[str, Any], context: Mapping[str, str]) -> dict[str, Any]:
    """Parameters with the context of Triton's trace of the request, unless the client named another trace.

    Args:
        parameters: parameters of the request, among them headers that Triton handed on.
        context: W3C's headers of the span that Triton makes; empty if it makes none.
    """
    if not context:
        return parameters
    given = next(_values(parameters, "traceparent"), None)
    own = _TRACE.match(given) if isinstance(given, str) else None
    if own is not None and own[1] not in context.get("traceparent", ""):
        return parameters
    return {**parameters, **context}


def _values(parameters: Mapping[str, Any], wanted: str) -> Iterator[Any]:
    """Values of the parameters of a name, whatever the case of its letters."""
    return (value for name, value in parameters.items() if name.lower() == wanted)


def check_key(api_keys: ApiKeys, parameters: Mapping[str, Any]) -> str:
    """Name of the key of a request with these parameters.

    Raises:
        AuthenticationError: it lacks the right key.
    """
    given = {name.lower(): value for name, value in parameters.items() if isinstance(value, str)}
    return api_keys.check(given.get("api_key") or bearer(given.get("authorization", "")), _REMEDY)


def request_id(parameters: Mapping[str, Any]) -> str:
    """Id that the client of a request with these parameters gave; empty if none."""
    return next((str(value) for value in _values(parameters, "id")), "")


def timeout_s(parameters: Mapping[str, Any]) -> float | None:
    """Seconds of the header `x-request-timeout`; None if a request with these parameters has none.

    Raises:
        InvalidRequestError: it is no number, or out of range.
    """
    return next((header_timeout(value) for value in _values(parameters, TIMEOUT_HEADER)), None)
