"""The endpoint registry: every folder is in it, and what it says reaches the routes, the metrics and the smoke test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import openai_bls.api
from openai_bls.api.app import create_app
from openai_bls.api.endpoint import Endpoint, expect
from openai_bls.api.http.write_batcher import WriteBatcher
from openai_bls.api.registry import ENDPOINTS, FOLDERS, TRITON_ENTRIES
from openai_bls.launcher.smoke.command import CHECKS
from tests.unit.core_support import Answered, Bench, ask


def test_every_folder_with_endpoints_is_registered() -> None:
    here = Path(openai_bls.api.__file__).parent
    found = [".".join(path.parent.relative_to(here).parts) for path in here.rglob("endpoints.py")]
    assert sorted(FOLDERS) == sorted(found)


def test_names_and_paths_are_unique() -> None:
    assert len({e.name for e in ENDPOINTS}) == len(ENDPOINTS)
    routes = [(e.method, path) for e in ENDPOINTS for path in e.paths]
    assert len(set(routes)) == len(routes)
    assert set(TRITON_ENTRIES) >= {"chat.completions", "completions", "embeddings", "tokenize", "detokenize"}


async def asked(endpoint: Endpoint, body: bytes, **settings: Any) -> tuple[list[Answered], list[str]]:
    """The answers on all paths of an endpoint, and the names under which they were counted as refusals."""
    refused: list[str] = []
    bench = Bench(**settings)
    bench.service.on_refused = lambda name, error, key: refused.append(name)
    app = create_app(bench.service, WriteBatcher(asyncio.get_running_loop()))
    answers = [await ask(app, endpoint.method, path, body) for path in endpoint.paths]
    assert bench.service.in_progress == 0
    return answers, refused


every_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.name)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"model": "\xff"}', b'{"n": NaN}', b"{1: 2}", b"[" * 100_000),
        *(b'{"n": 0}', b'{"what": 1}', b"{}"),
    ],
)
@every_endpoint
async def test_a_bad_body_is_a_400_counted_under_the_endpoints_name(endpoint: Endpoint, body: bytes) -> None:
    others = ("responses.cancel", "reset_prefix_cache", "batches.cancel", "generate.official", "repository.index")
    if endpoint.method != "POST" or endpoint.name in others:
        return
    if endpoint.name == "conversations" and body == b"{}":
        # An empty conversation.
        return
    answers, refused = await asked(endpoint, body)
    for answer in answers:
        assert answer.status == 400
        assert set(answer.json()["error"]) >= {"message", "type"}
        assert body.endswith(b"}") or answer.json()["error"].get("param") is None
    assert refused == [endpoint.name] * len(answers)


@every_endpoint
async def test_every_endpoint_wants_the_key(endpoint: Endpoint) -> None:
    answers, _ = await asked(endpoint, b"{}", api_key="k")
    assert {answer.status for answer in answers} == {401}


def test_every_check_of_the_registry_is_in_the_smoke_test() -> None:
    names = {check.name for check in CHECKS}
    for endpoint in ENDPOINTS:
        if endpoint.smoke is not None:
            assert f"POST {endpoint.paths[0]}" in names
            assert (f"generate, {endpoint.name}" in names) == (endpoint.triton is not None)
    with pytest.raises(AssertionError, match="no text"):
        expect("", "no text")
