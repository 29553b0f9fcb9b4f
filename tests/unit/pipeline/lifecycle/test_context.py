"""The context of a request: its status, its deadline, and when it has ended."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.core.errors import InvalidRequestError
from openai_bls.pipeline.lifecycle.context import CLIENT_GONE, RequestContext
from openai_bls.pipeline.observation.observer import Observer
from tests.unit.pipeline.metrics.metrics_support import record
from tests.unit.pipeline.observation.test_request_log import observed


@pytest.mark.parametrize(
    ("body_s", "outside_s", "timeout_s"),
    [(None, None, None), (5.0, None, 5.0), (None, 4.0, 4.0), (5.0, 4.0, 4.0), (4.0, 5.0, 4.0)],
)
def test_the_shorter_timeout_counts(body_s: float | None, outside_s: float | None, timeout_s: float | None) -> None:
    context = RequestContext()
    context.timeout_s = outside_s
    deadline = context.deadline(body_s, began_at=100.0)
    assert deadline == (None if timeout_s is None else (100.0 + timeout_s, timeout_s))


@pytest.mark.parametrize(
    ("outcome", "http_status", "status"),
    [
        ("done", 200, 200),
        ("done", 0, 200),
        ("cancelled", 200, CLIENT_GONE),
        (InvalidRequestError("within a stream"), 200, 400),
        ("done", 503, 503),
    ],
)
def test_status(outcome: Any, http_status: int, status: int) -> None:
    found = observed(http_status=http_status)
    found.records.append(record(outcome=outcome))
    assert found.status == status


def test_what_goes_on_after_the_answer_ends_the_request() -> None:
    ended: list[RequestContext] = []

    class Told(Observer):
        def ended(self, context: RequestContext) -> None:
            ended.append(context)

    found = Told().begin("TRITON", "openai_bls")
    part = found.opened()
    found.released()
    assert (part, ended) == (found, [])
    part.recorded(record())
    assert ended == [found]
    # What begins later has a line of its own.
    later = found.opened()
    later.recorded(record())
    assert ended == [found, later]
