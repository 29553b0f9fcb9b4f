"""Context of a trace among a request's parameters: Triton's, unless the client named another trace."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.triton_models.endpoint.request_keys import with_trace

CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SAME_TRACE = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
OTHER_TRACE = "00-3fa758cfe67c430a3415759574b243b4-00f067aa0ba902b7-01"


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
    parameters = {} if given is None else {"traceparent": given}
    context = {} if traced is None else {"traceparent": traced}
    assert with_trace(parameters, context)["traceparent"] == expected
