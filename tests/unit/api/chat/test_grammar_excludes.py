"""Fields that an engine does otherwise under a grammar: refused together with what makes one, by their names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.http_support import asked
from tests.unit.core_support import Bench, engine_info

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CHAT = "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
EXCLUDED = ("logprobs", "bad_words", "allowed_token_ids")
GRAMMARS = [
    (CHAT, MESSAGES | {"response_format": JSON}),
    (CHAT, MESSAGES | {"response_format": {"type": "json_object"}}),
    (CHAT, MESSAGES | {"guided_regex": "a+"}),
    (CHAT, MESSAGES | {"tools": [TOOL], "tool_choice": "required"}),
    (CHAT, MESSAGES | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("/v1/completions", {"prompt": "hi", "structured_outputs": {"choice": ["a", "b"]}}),
]


def answer(bench: Bench) -> None:
    for at in range(len(bench.engine.requests)):
        bench.engine.deliver(at, "a", "stop")


def refused(path: str, body: dict[str, Any], excludes: tuple[str, ...] = EXCLUDED) -> tuple[int, Any, Any]:
    bench = Bench(engine_info(grammar_excludes=excludes))
    reply = asked(bench, path, body, lambda: answer(bench))
    error = reply.json().get("error", {})
    return reply.status, error.get("code"), error.get("param")


@pytest.mark.parametrize(("path", "body"), GRAMMARS)
@pytest.mark.parametrize(
    ("field", "value"), [("logprobs", 1), ("bad_words", ["no"]), ("allowed_token_ids", [5])], ids=str
)
def test_each_is_refused_by_its_name_beside_a_grammar_and_taken_without_one(
    path: str, body: dict[str, Any], field: str, value: Any
) -> None:
    if field == "logprobs" and path == CHAT:
        value = True
    given = body | {field: value}
    assert refused(path, given) == (400, "unsupported_parameter", field)
    assert refused(path, given, ())[0] == 200
    plain = {name: given[name] for name in ("messages", "prompt", field) if name in given}
    assert refused(path, plain)[0] == 200


def test_the_best_of_several_are_found_by_log_probabilities() -> None:
    body = {"prompt": "hi", "guided_regex": "a+", "best_of": 3}
    assert refused("/v1/completions", body) == (400, "unsupported_parameter", "best_of")
    responses = {"input": "hi", "text": {"format": {"type": "json_object"}}, "top_logprobs": 1}
    responses["include"] = ["message.output_text.logprobs"]
    assert refused("/v1/responses", responses) == (400, "unsupported_parameter", "include")
