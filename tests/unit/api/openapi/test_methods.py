"""Methods of every path of the description, with and without a slash behind it: served, or 405 with those that are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openai_bls.api.openapi.document import document
from openai_bls.api.registry import BY_TITLE
from tests.unit.api.http_support import application, asked
from tests.unit.core_support import Bench, ask

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
PATHS: dict[str, dict[str, Any]] = document(BY_TITLE, has_keys=False, has_guards=False)["paths"]


@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.parametrize("end", ["", "/"])
def test_allow_lists_what_works(path: str, end: str) -> None:
    served = {method.upper() for method in PATHS[path]}
    served |= {"HEAD"} if "GET" in served else set()

    async def main() -> None:
        # Reading it would wait for an engine, or for files.
        app = application(Bench())
        for method in METHODS:
            answer = await ask(app, method, path + end)
            assert (answer.status == 405) == (method not in served), method
            if answer.status == 405:
                assert set(answer.headers["allow"].split(", ")) == served

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/", "/docs/", "/v1/models/", "/v1/models//", "/health/live/", "/openapi.json/"])
def test_a_slash_at_the_end_is_served(path: str) -> None:
    answer = asked(Bench(), path, method="GET")
    assert answer.status == 200
    assert answer.body == asked(Bench(), path.rstrip("/") or "/", method="GET").body


def test_a_request_with_a_slash_at_the_end_is_answered() -> None:
    bench = Bench()
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = asked(bench, "/v1/chat/completions/", body, lambda: bench.engine.deliver(0, "a", "stop"))
    assert answer.status == 200
    assert asked(Bench(), "/v1/nothing/", method="GET").status == 404
