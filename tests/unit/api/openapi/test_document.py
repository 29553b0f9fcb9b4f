"""The document against OpenAPI's own schema, the code that it is made from, and what the server reads and answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from openai_bls.api.chat.schema import UNSUPPORTED, ChatCompletionRequest
from openai_bls.api.openapi.document import document
from openai_bls.api.openapi.field_docs import field_docs
from openai_bls.api.registry import BY_TITLE, ENDPOINTS
from tests.unit.api.http_support import asked
from tests.unit.core_support import Bench


@cache
def made(*, has_keys: bool = False, has_guards: bool = False) -> dict[str, Any]:
    return document(BY_TITLE, has_keys=has_keys, has_guards=has_guards)


def schema_of(ref: dict[str, Any]) -> dict[str, Any]:
    return {**ref, "components": made()["components"]}


def errors(schema: dict[str, Any], value: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schema_of(schema)).iter_errors(value)]


def operation(path: str, method: str = "post") -> dict[str, Any]:
    found: dict[str, Any] = made()["paths"][path][method]
    return found


def body_of(path: str) -> dict[str, Any]:
    schema: dict[str, Any] = operation(path)["requestBody"]["content"]["application/json"]["schema"]
    return schema


def test_every_reference_leads_somewhere_and_every_component_is_a_schema() -> None:
    text = msgspec.json.encode(made()).decode()
    for ref in set(re.findall(r'"\$ref":"#/components/schemas/([^"]*)"', text)):
        assert ref in made()["components"]["schemas"]
    for component in made()["components"]["schemas"].values():
        Draft202012Validator.check_schema(component)
        assert component["description"]


def test_every_endpoint_is_described() -> None:
    described = {(path, method) for path, item in made()["paths"].items() for method in item}
    for endpoint in ENDPOINTS:
        for path in endpoint.paths:
            assert (re.sub(r":\w+\}", "}", path), endpoint.method.lower()) in described
    ids = [one["operationId"] for item in made()["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))
    assert {tag for item in made()["paths"].values() for one in item.values() for tag in one["tags"]} == {
        tag["name"] for tag in made()["tags"]
    }


def test_examples_fit_their_schemas() -> None:
    for item in made()["paths"].values():
        for one in item.values():
            for content in one.get("requestBody", {}).get("content", {}).values():
                if "example" in content:
                    assert errors(content["schema"], content["example"]) == []


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"temperature": 2, "top_p": None, "stop": ["a"], "n": 1, "priority": -1, "seed": -1}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, True),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"}, True),
        ({"temperature": 3}, False),
        ({"top_p": -0.1}, False),
        ({"stop": ["a"] * 17}, False),
        ({"stop": ""}, False),
        ({"priority": 2**64}, False),
        ({"audio": {}}, False),
        ({"what": 1}, False),
        ({"messages": []}, False),
        ({"messages": [{"role": "robot", "content": ""}]}, False),
        ({"messages": [{"content": ""}]}, False),
        ({"logit_bias": {"x": 1}}, False),
        ({"response_format": {"type": "yaml"}}, False),
        ({"structured_outputs": {"choice": []}}, False),
        ({"tools": [{"type": "web_search"}]}, False),
    ],
)
def test_a_chat_fits_the_schema_exactly_where_the_server_takes_it(change: dict[str, Any], fits: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **change}
    assert (not errors(body_of("/v1/chat/completions"), body)) == fits
    bench = Bench()

    def feed() -> None:
        if bench.engine.requests:
            bench.engine.deliver(0, "x", finish_reason="stop")

    answer = asked(bench, "/v1/chat/completions", body, feed)
    assert (answer.status == 200) == fits, answer.json()


def parts(schema: Any, components: dict[str, Any], path: str, seen: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema and in the components that it refers to, with its place."""
    if isinstance(schema, list):
        for at, member in enumerate(schema):
            yield from parts(member, components, f"{path}/{at}", seen)
    elif isinstance(schema, dict):
        yield path, schema
        name = schema.get("$ref", "").rpartition("/")[2]
        if name and name not in seen:
            seen.add(name)
            yield from parts(components[name], components, name, seen)
        for key, member in schema.items():
            yield from parts(member, components, f"{path}/{key}", seen)


def test_every_array_and_text_of_a_request_is_bounded() -> None:
    found = document(BY_TITLE, has_keys=True, has_guards=True, max_items=2048, max_values=100_000, max_bytes=5_000_000)
    bodies = [one["requestBody"] for item in found["paths"].values() for one in item.values() if "requestBody" in one]
    schemas = dict(parts(bodies, found["components"]["schemas"], "", set()))
    arrays = {path: schema for path, schema in schemas.items() if schema.get("type") == "array"}
    bounds = {path: schema.get("maxItems") for path, schema in arrays.items()}
    assert None not in bounds.values()
    texts = {
        path: schema.get("maxLength")
        for path, schema in schemas.items()
        if schema.get("type") in ("string", ["string", "null"]) and not {"enum", "const"} & schema.keys()
    }
    assert {path for path, bound in texts.items() if bound is None} == {
        path for path in texts if schemas[path].get("format") == "binary"
    }, "a file has a limit of its own"
    assert texts["CompletionRequest/properties/prompt/anyOf/0"] == 5_000_000
    assert texts["ChatCompletionRequest/properties/stop/anyOf/0"] == 1000
    # Each takes a token at least; what is left is bounded by the values of the body.
    assert (
        bounds["UserMessage/properties/content/anyOf/1"] == bounds["ChatCompletionRequest/properties/messages"] == 2048
    )
    assert bounds["DetokenizeBody/properties/tokens"] == 100_000


def test_fields_are_described_where_they_are_declared() -> None:
    properties = made()["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert properties["stop"]["description"] == field_docs(ChatCompletionRequest)["stop"]
    assert properties["user"]["description"].startswith("No effect")
    for name, unsupported in UNSUPPORTED.items():
        if name in properties:
            assert unsupported.advice in properties[name]["description"]
    responses = made()["components"]["schemas"]["CreateRequest"]["properties"]
    assert responses["top_k"] == properties["top_k"]


def test_keys_and_guards() -> None:
    assert "security" not in made()
    with_keys = made(has_keys=True)
    assert set(with_keys["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    assert "401" in with_keys["paths"]["/v1/models"]["get"]["responses"]
    assert "401" not in operation("/v1/models", "get")["responses"]
    assert with_keys["paths"]["/health"]["get"]["security"] == []
    guarded = made(has_guards=True)["paths"]
    assert "4XX" in guarded["/v1/chat/completions"]["post"]["responses"]
    assert "529" in operation("/v1/messages")["responses"]
    assert "503" not in operation("/v1/messages")["responses"]


def test_only_what_is_written_to_disk_finds_it_full() -> None:
    paths = made()["paths"]
    full = {(path, method) for path in paths for method, one in paths[path].items() if "507" in one["responses"]}
    assert full == {("/v1/files", "post"), ("/v1/batches", "post"), ("/v1/batches/{batch_id}/cancel", "post")}


def test_only_what_an_admin_may_do_is_refused_to_others() -> None:
    paths = made(has_keys=True)["paths"]
    refused = {path for path in paths for one in paths[path].values() if "403" in one["responses"]}
    assert refused == {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache"}
    assert "403" not in operation("/reset_prefix_cache")["responses"]


def test_only_what_other_models_answer_may_be_their_fault() -> None:
    paths = made()["paths"]
    found = {path for path in paths for one in paths[path].values() if "502" in one["responses"]}
    assert found == {
        *("/v1/chat/completions", "/v1/embeddings", "/v1/moderations", "/v1/audio/speech"),
        *("/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/v1/classify", "/classify"),
        *("/v1/audio/transcriptions", "/v1/audio/translations"),
    }
