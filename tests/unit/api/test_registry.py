"""The endpoint registry: every folder is in it, and what it says reaches the routes, the metrics and the smoke test."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import openai_bls.api
from openai_bls.api.endpoint import Endpoint, expect
from openai_bls.api.http.app import create_app
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.registry import ENDPOINTS, FOLDERS, TRITON_ENTRIES
from openai_bls.core.errors import ApiError
from openai_bls.launcher.smoke.command import CHECKS
from tests.unit.core_support import Bench, ask


def test_every_folder_with_endpoints_is_registered() -> None:
    here = Path(openai_bls.api.__file__).parent
    assert sorted(FOLDERS) == sorted(path.parent.name for path in here.glob("*/endpoints.py"))


def test_names_and_paths_are_unique() -> None:
    assert len({e.name for e in ENDPOINTS}) == len(ENDPOINTS)
    routes = [(e.method, path) for e in ENDPOINTS for path in e.paths]
    assert len(set(routes)) == len(routes)
    assert set(TRITON_ENTRIES) >= {"chat.completions", "completions", "embeddings", "tokenize", "detokenize"}


@pytest.mark.parametrize("endpoint", [e for e in ENDPOINTS if e.method == "POST"], ids=lambda e: e.name)
def test_a_refusal_is_counted_under_the_endpoints_name(endpoint: Endpoint) -> None:
    refused: list[tuple[str, ApiError]] = []

    async def main() -> None:
        bench = Bench()
        bench.service.on_refused = lambda name, error: refused.append((name, error))
        app = create_app(bench.service, WriteBatcher(asyncio.get_running_loop()))
        for path in endpoint.paths:
            answered = await ask(app, "POST", path, b"[]")
            assert answered.status in (400, 404)

    asyncio.run(main())
    assert {name for name, _ in refused} == {endpoint.name}
    assert len(refused) == len(endpoint.paths)


def test_every_check_of_the_registry_is_in_the_smoke_test() -> None:
    names = {check.name for check in CHECKS}
    for endpoint in ENDPOINTS:
        if endpoint.smoke is not None:
            assert f"POST {endpoint.paths[0]}" in names
            assert (f"generate, {endpoint.name}" in names) == (endpoint.triton is not None)
    with pytest.raises(AssertionError, match="no text"):
        expect("", "no text")
