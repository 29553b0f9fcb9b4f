from __future__ import annotations

import json

import pytest

from openai_bls.api.messages.errors import error_body, error_event
from openai_bls.core.errors import (
    ApiError,
    AuthenticationError,
    EngineError,
    InvalidRequestError,
    ModelNotFoundError,
    NotFoundError,
    OverloadedError,
)


def too_large() -> ApiError:
    error = InvalidRequestError("m")
    error.status = 413
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequestError("m"), "invalid_request_error"),
        (too_large(), "request_too_large"),
        (ModelNotFoundError("m"), "not_found_error"),
        (NotFoundError("m"), "not_found_error"),
        (OverloadedError("m"), "overloaded_error"),
        (EngineError("m"), "api_error"),
    ],
)
def test_types(error: ApiError, kind: str) -> None:
    assert error_body(error) == {"type": "error", "error": {"type": kind, "message": "m"}}


def test_a_missing_key() -> None:
    error = error_body(AuthenticationError("Authorization: Bearer"))["error"]
    assert error["type"] == "authentication_error"
    assert "x-api-key" in error["message"]


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("temperature", "temperature"),
        ("stop", "stop_sequences"),
        ("stopper", "stopper"),
        ("response_format", "output_config.format"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("tools[2].function.name", "tools.2.name"),
        ("tools[0].function.parameters", "tools.0.input_schema"),
        ("tools[0].function.parameters.type", "tools.0.input_schema.type"),
        ("tools[0].function", "tools.0"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("messages", "messages"),
        ("messages[3].content[0]", "messages.3.content.0"),
    ],
)
def test_fields_have_their_own_names(param: str, name: str) -> None:
    message = error_body(InvalidRequestError(f"'{param}' is bad: 'this' is not.", param=param))["error"]["message"]
    assert message == f"'{name}' is bad: 'this' is not."


def test_effort_has_its_own_values() -> None:
    error = InvalidRequestError("'reasoning_effort' may be \"none\"", param="reasoning_effort")
    message = error_body(error)["error"]["message"]
    assert "output_config.effort" in message
    assert "none" not in message


def test_the_event() -> None:
    head, data, *rest = error_event(EngineError("it\nbroke")).decode().split("\n")
    assert head == "event: error"
    assert json.loads(data.removeprefix("data: ")) == error_body(EngineError("it\nbroke"))
    assert rest == ["", ""]
