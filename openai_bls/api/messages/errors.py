"""Errors of the Messages API: its body, types and statuses, and its field names.

There is no `param` in that body, hence every message names its field, in Anthropic's notation: `messages.0.content.1`.
"""

from __future__ import annotations

import re
from typing import Any

from openai_bls.api.common.encoding import encode
from openai_bls.api.common.faults import Fault, Tell
from openai_bls.core.errors import ApiError, AuthenticationError, ContextLengthError, InvalidRequestError

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

_TOO_LONG = "prompt is too long"
_LENGTH_SENTENCES = (_TOO_LONG, "input length and")
_LENGTH_CODES = (ContextLengthError.default_code, "string_above_max_length")

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


def too_long(prompt_tokens: int, max_model_len: int, max_tokens: int) -> InvalidRequestError:
    """The refusal of a prompt that leaves no room for an answer, in Anthropic's words: clients act by them.

    Args:
        prompt_tokens: tokens of the prompt.
        max_model_len: most tokens of prompt and answer together.
        max_tokens: most tokens of the answer that the request allows.
    """
    if prompt_tokens > max_model_len:
        message = f"{_TOO_LONG}: {prompt_tokens} tokens > {max_model_len} maximum"
    else:
        message = (
            f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {max_tokens} > {max_model_len}, "
            "decrease input length or `max_tokens` and try again"
        )
    return InvalidRequestError(message, param="messages", code=ContextLengthError.default_code)


def _message(error: ApiError) -> str:
    """The error's message with the field at fault under its name in this API."""
    message = _named(error)
    if error.code in _LENGTH_CODES and not message.startswith(_LENGTH_SENTENCES):
        # The number of tokens is not known where the text has too many bytes, or too many parts.
        return f"{_TOO_LONG}: {message}"
    return message


def _named(error: ApiError) -> str:
    if isinstance(error, AuthenticationError):
        return "Incorrect or missing API key: send it in the header 'x-api-key'."
    param = error.param
    if param is None:
        return error.message
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
