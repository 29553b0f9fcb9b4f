"""/openapi.json of the real server, held against what it answers: generated requests, valid and invalid."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from openai_bls.launcher.testing import RunningServer

pytestmark = pytest.mark.triton

EXAMPLES = 3
"""Requests to each operation."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
LENGTHS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
"""Path → the field that keeps its answers short."""


@pytest.fixture(scope="module")
def described(server: RunningServer) -> Any:
    return schemathesis.openapi.from_url(server.openai_url.removesuffix("/v1") + "/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_are_as_described(described: Any, mode: GenerationMode) -> None:
    for found in described.exclude(tag="Server").get_all_operations():
        operation = found.ok()
        if mode.is_negative and operation.definition.raw.get("requestBody") is None:
            continue
        _check(operation.as_strategy(generation_mode=mode))


def _check(cases: SearchStrategy[Any]) -> None:
    @given(case=cases)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        body = case.body if isinstance(case.body, dict) else {}
        length = LENGTHS.get(case.operation.path)
        if length is not None and body and body.get(length) is None:
            body[length] = 2
        for name in {length, "max_completion_tokens", "n", "best_of"} & set(body):
            if isinstance(body[name], int) and body[name] > 2:
                body[name] = 2
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()


def test_other_methods_are_told_which_there_are(described: Any, server: RunningServer) -> None:
    base = server.openai_url.removesuffix("/v1")
    with httpx.Client(base_url=base, timeout=60) as client:
        for path, item in described.raw_schema["paths"].items():
            known = {method.upper() for method in item} | ({"HEAD"} if "get" in item else set())
            for method in {"DELETE", "GET", "PATCH", "POST", "PUT"} - known:
                response = client.request(method, path)
                assert (response.status_code, set(response.headers["allow"].split(", "))) == (405, known), path


def test_answers_of_every_kind_are_as_described(described: Any, server: RunningServer) -> None:
    """Schemathesis rarely makes a request that is answered: the examples are, all but that of a file's batch."""
    base = server.openai_url.removesuffix("/v1")
    raw = described.raw_schema
    statuses = {}
    for path, item in raw["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if "example" not in content or "{" in path:
                continue
            response = httpx.request(method, base + path, json=content["example"], timeout=60)
            described[path][method.upper()].validate_response(response)
            statuses[path] = response.status_code
    assert {path for path, status in statuses.items() if status != 200} == {"/v1/batches"}
    assert len(statuses) > 9
