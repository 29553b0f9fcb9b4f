"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.core_support import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A service on a fake engine, with nothing in progress at the end."""
    bench = Bench()
    yield bench
    assert bench.service.in_progress == 0
