"""Cases are drawn from what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torture import cases, schemas


def test_a_damaged_body_leaves_its_samples_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis refuses a sample that is another one the next time, and a run would lose a client by it."""
    sample: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "max_tokens": 2000}
    monkeypatch.setattr(schemas, "fields_of", lambda _: {"field": st.just(sample)})

    @settings(max_examples=200, database=None, derandomize=True, deadline=None)
    @given(cases.json_bodies("chat", {"model": "demo"}))
    def draw(_: dict[str, Any]) -> None:
        assert sample == {"type": "object", "properties": {"a": {"type": "string"}}, "max_tokens": 2000}

    draw()
