"""The routes of the description: what many ask for at once is made once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openai_bls.api.openapi import routes
from openai_bls.api.openapi.document import document
from tests.unit.api.http_support import application
from tests.unit.core_support import Bench, ask


async def test_a_description_is_made_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> dict[str, Any]:
        made.append(kwargs)
        return document(*args, **kwargs)

    monkeypatch.setattr(routes, "document", counted)
    app = application(Bench())
    answers = await asyncio.gather(*(ask(app, "GET", "/openapi.json", b"", ()) for _ in range(8)))
    assert {answer.status for answer in answers} == {200}
    assert len(made) == 1
