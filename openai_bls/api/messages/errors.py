"""Errors of the Messages API: its body, types and statuses, and its field names.

There is no `param` in that body, hence every message names its field, in Anthropic's notation: `messages.0.content.1`.
"""

from __future__ import annotations

import re
from typing import Any

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.faults import Fault, Tell
from openai_bls.core.errors import ApiError, AuthenticationError, InvalidRequestError

OVERLOADED = 529
"""Anthropic's status for what is 503 elsewhere; its SDKs make an `OverloadedError` of it."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# Fields of the chat completion that a request becomes → the API's own.
_NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
_TOOL_FIELD = re.compile(r"^(?P<tool>tools\.\d+)\.function\b(?P<parameters>\.parameters\b)?")
_NO_EFFORT = (
    '\'output_config.effort\': this model has no levels of effort; the field may be left out, or be "medium" or "high".'
)

_FAULTS = {"unknown": "Extra inputs are not permitted", "missing": "Field required"}


def error_type(error: ApiError) -> str:
    """Anthropic's name for the kind of error."""
    # A guard may refuse with any 4xx.
    return _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}}`; the request's id is added where it is known."""
    return {"type": "error", "error": {"type": error_type(error), "message": _message(error)}}


def error_event(error: ApiError) -> bytes:
    """The event that ends a stream with an error."""
    return b"event: error\ndata: " + encode(error_body(error)) + b"\n\n"


def refused(where: str, why: str) -> InvalidRequestError:
    """An error that names the field and says why, or what to send instead."""
    return InvalidRequestError(f"{where}: {why}", param=where)


def fault(what: Fault) -> InvalidRequestError:
    """A field of the wrong type, missing or unknown."""
    where = _dotted(what.field)
    why = _FAULTS.get(what.kind, what.message)
    return refused(where, why) if where else InvalidRequestError(why)


def fault_at(where: str) -> Tell:
    """`fault` for a value at path `where`."""
    return lambda what: fault(what.below(where))


def _message(error: ApiError) -> str:
    """The error's message with the field at fault under its name in this API."""
    if isinstance(error, AuthenticationError):
        return "Incorrect or missing API key: send it in the header 'x-api-key'."
    param = error.param
    if param is None:
        return error.message
    if param == "reasoning_effort":
        return _NO_EFFORT
    name = _name(param)
    return error.message if name == param else error.message.replace(f"'{param}'", f"'{name}'")


def _name(param: str) -> str:
    for old, new in _NAMES.items():
        if param == old or param.startswith((old + ".", old + "[")):
            param = new + param[len(old) :]
            break
    return _TOOL_FIELD.sub(
        lambda match: match["tool"] + (".input_schema" if match["parameters"] else ""), _dotted(param)
    )


def _dotted(path: str) -> str:
    """Places in arrays as the API writes them."""
    return re.sub(r"\[(\d+)\]", r".\1", path)
