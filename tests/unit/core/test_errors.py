from __future__ import annotations

import json

import pytest

from openai_bls.api.common.encoding import encode
from openai_bls.core import errors


@pytest.mark.parametrize(
    ("cls", "status", "kind", "code"),
    [
        (errors.InvalidRequestError, 400, "invalid_request_error", None),
        (errors.AuthenticationError, 401, "authentication_error", "invalid_api_key"),
        (errors.PermissionDeniedError, 403, "invalid_request_error", "insufficient_permissions"),
        (errors.NotFoundError, 404, "invalid_request_error", None),
        (errors.ModelNotFoundError, 404, "invalid_request_error", "model_not_found"),
        (errors.OverloadedError, 503, "server_error", "server_overloaded"),
        (errors.DeadlineError, 504, "server_error", "timeout"),
        (errors.EngineError, 500, "server_error", None),
    ],
)
def test_the_body_is_openais_and_nothing_else(
    cls: type[errors.ApiError], status: int, kind: str, code: str | None
) -> None:
    error = cls("no", param="n")
    assert error.status == status
    assert json.loads(encode(error.body())) == {"error": {"message": "no", "type": kind, "param": "n", "code": code}}


def test_a_given_code_wins_and_param_may_be_absent() -> None:
    body = errors.ModelNotFoundError("no", code="other").body()["error"]
    assert (body["code"], body["param"]) == ("other", None)


def test_a_large_bad_input_does_not_come_back_as_a_large_error() -> None:
    error = errors.InvalidRequestError("x" * 10**6, param="p" * 10**6)
    assert len(encode(error.body())) < 1000
    assert error.message.endswith("…")
    assert str(error) == error.message
