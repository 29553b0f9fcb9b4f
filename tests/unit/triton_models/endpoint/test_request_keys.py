from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.errors import AuthenticationError, InvalidRequestError
from openai_bls.core.keys.api_keys import ApiKeys
from openai_bls.core.settings import OpenAiBlsSettings
from openai_bls.triton_models.endpoint.request_keys import check_key, timeout_s, with_trace

KEYS = ApiKeys.of(OpenAiBlsSettings(api_key="k"))
CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SAME_TRACE = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
OTHER_TRACE = "00-3fa758cfe67c430a3415759574b243b4-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "parameters", [{"api_key": "k"}, {"authorization": "Bearer k"}, {"Authorization": "bearer k", "api_key": ""}]
)
def test_a_key_is_a_parameter_or_a_forwarded_header(parameters: dict[str, Any]) -> None:
    assert check_key(KEYS, parameters) == ""
    assert check_key(ApiKeys(), {}) == ""


@pytest.mark.parametrize(
    "parameters", [{}, {"api_key": "x"}, {"api_key": True}, {"authorization": "k"}, {"authorization": "Basic k"}]
)
def test_a_wrong_key(parameters: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError) as refused:
        check_key(KEYS, parameters)
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


def test_the_header_of_a_timeout() -> None:
    assert timeout_s({"seed": 1}) is None
    assert timeout_s({"X-Request-Timeout": "2.5"}) == 2.5
    with pytest.raises(InvalidRequestError) as refused:
        timeout_s({"x-request-timeout": "soon"})
    assert refused.value.param == "x-request-timeout"


@pytest.mark.parametrize(
    ("given", "traced", "expected"),
    [
        (None, OTHER_TRACE, OTHER_TRACE),
        (CLIENTS, None, CLIENTS),
        (CLIENTS, SAME_TRACE, SAME_TRACE),
        (CLIENTS, OTHER_TRACE, CLIENTS),
        ("nonsense", OTHER_TRACE, OTHER_TRACE),
        (7, OTHER_TRACE, OTHER_TRACE),
    ],
)
def test_whose_trace_it_is(given: Any, traced: str | None, expected: str) -> None:
    """Triton's, unless the client named another."""
    parameters = {} if given is None else {"traceparent": given}
    context = {} if traced is None else {"traceparent": traced}
    assert with_trace(parameters, context)["traceparent"] == expected
