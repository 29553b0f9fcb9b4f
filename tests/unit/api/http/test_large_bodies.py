"""Bodies with more values than the server decodes, or more items than any context has tokens."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openai_bls.api.common.large_bodies import check_values, parsed
from openai_bls.api.openapi.document import document
from openai_bls.api.registry import BY_TITLE
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.http_support import asked
from tests.unit.core_support import WAIT_S, Bench, chat, engine_info

CONTEXT = 64
USER = {"role": "user", "content": "a"}
PART = {"type": "text", "text": "a"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BLOCKS = {"type": "tool_result", "tool_use_id": "a", "content": [PART] * CONTEXT}
MESSAGES = {"model": "openai_bls", "max_tokens": 1}

TOO_MANY: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "messages", {"messages": [USER] * (CONTEXT + 1)}),
    ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": [PART] * (CONTEXT + 1)}]}),
    ("/v1/chat/completions", "messages", {"messages": [USER, {"role": "assistant", "tool_calls": [CALL] * CONTEXT}]}),
    (
        "/v1/chat/completions",
        "tools",
        {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}] * (CONTEXT + 1)},
    ),
    ("/v1/chat/completions", "documents", {"messages": [USER], "documents": [{"a": "b"}] * (CONTEXT + 1)}),
    ("/v1/responses", "input", {"input": [USER] * (CONTEXT + 1)}),
    ("/v1/responses", "input", {"input": [USER, {"role": "user", "content": [PART] * CONTEXT}]}),
    ("/v1/responses", "tools", {"input": "a", "tools": [{"type": "function", **FUNCTION}] * (CONTEXT + 1)}),
    ("/v1/responses/input_tokens", "input", {"input": [USER] * (CONTEXT + 1)}),
    ("/v1/responses/compact", "input", {"input": [USER] * (CONTEXT + 1)}),
    ("/v1/tokenize", "messages", {"messages": [USER] * (CONTEXT + 1)}),
    ("/v1/messages", "messages", {**MESSAGES, "messages": [USER] * (CONTEXT + 1)}),
    ("/v1/messages", "messages", {**MESSAGES, "messages": [{"role": "user", "content": [BLOCKS]}]}),
    ("/v1/messages", "system", {**MESSAGES, "messages": [USER], "system": [PART] * (CONTEXT + 1)}),
    (
        "/v1/messages",
        "tools",
        {**MESSAGES, "messages": [USER], "tools": [{"name": "f", "input_schema": {}}] * (CONTEXT + 1)},
    ),
]


@pytest.mark.parametrize(("path", "field", "body"), TOO_MANY)
def test_more_items_than_the_context_has_tokens_are_refused_by_name(
    path: str, field: str, body: dict[str, Any]
) -> None:
    bench = Bench(engine_info(max_model_len=CONTEXT))
    answer = asked(bench, path, body)
    error = answer.json()["error"]
    assert answer.status == 400
    if path == "/v1/messages":
        assert f"'{field}'" in error["message"]
    else:
        assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    assert not bench.engine.requests


def test_as_many_items_as_the_context_has_tokens_are_only_counted_as_tokens() -> None:
    answer = asked(Bench(engine_info(max_model_len=CONTEXT)), "/v1/tokenize", {"messages": [USER] * CONTEXT})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop_token_ids", [1] * 1025), ("chat_template_kwargs", {f"k{number}": 1 for number in range(257)})],
)
def test_fields_that_no_context_bounds_have_bounds_of_their_own(field: str, value: Any) -> None:
    answer = asked(Bench(), "/v1/chat/completions", {"messages": [USER], field: value})
    assert (answer.status, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER], "logit_bias": {str(number): 1 for number in range(20_000)}}),
        ("/v1/completions", {"prompt": [1] * 40_000}),
        ("/v1/responses", {"input": [USER] * 10_000}),
        ("/v1/messages", {**MESSAGES, "messages": [USER] * 10_000}),
        ("/v1/detokenize", {"tokens": [1] * 40_000}),
        ("/v1/embeddings", {"input": ["a"] * 20_000}),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 20_000}),
    ],
)
def test_more_values_than_the_setting_allows_are_refused_before_they_are_decoded(
    path: str, body: dict[str, Any]
) -> None:
    answer = asked(Bench(max_request_values=10_000), path, body)
    assert answer.status == 400
    assert "max_request_values" in answer.json()["error"]["message"]


def test_the_text_of_a_tool_calls_arguments_is_decoded_within_bounds() -> None:
    """An answer may be as long as it is: beyond them its arguments stay text."""
    for count, kind in ((60_000, dict), (70_000, str)):
        arguments = json.dumps({"a": [1] * count})
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
        prompt = chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}]).prompt
        assert prompt is not None
        assert prompt.messages is not None
        assert isinstance(prompt.messages[1]["tool_calls"][0]["function"]["arguments"], kind)


def structural(value: Any) -> int:
    """Commas and openings of the JSON text of `value`."""
    if not isinstance(value, (list, dict)):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(structural, inner))


TEXT = st.text(alphabet='ab"\\,{[\n', max_size=8)
JSON = st.recursive(TEXT | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


@given(JSON, st.integers(min_value=0, max_value=12))
@settings(max_examples=50)
@example("a\\", 3)  # The border is between the two backslashes of an escape.
def test_what_stands_in_strings_is_not_counted(value: Any, ahead: int) -> None:
    # The text lies at different places about the border of two slices.
    text = b" " * (64 * 1024 - ahead) + json.dumps(value).encode()
    count = 1 + structural(value)
    check_values(text, count)
    with pytest.raises(InvalidRequestError):
        check_values(text, count - 1)


def test_a_large_body_is_parsed_while_the_event_loop_turns() -> None:
    async def main() -> None:
        turned = threading.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        assert await parsed(lambda: turned.wait(WAIT_S), large=True, key="")

    asyncio.run(main())


def test_large_bodies_of_a_key_are_not_another_s_wait() -> None:
    """However many there are: they are parsed in turn by key."""
    go, order = threading.Event(), list[str]()

    def parse(key: str) -> None:
        go.wait(WAIT_S)
        order.append(key)

    async def main() -> None:
        hers = [asyncio.create_task(parsed(partial(parse, "alice"), large=True, key="alice")) for _ in range(50)]
        await asyncio.sleep(0)
        his = asyncio.create_task(parsed(partial(parse, "bob"), large=True, key="bob"))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(his, *hers)

    asyncio.run(main())
    # The two that were there first, and perhaps the next of each thread.
    assert "bob" in order[:5]


def test_the_description_has_the_bound_of_the_longest_context() -> None:
    schemas = document(BY_TITLE, has_keys=False, has_guards=False, max_items=CONTEXT)["components"]["schemas"]
    arrays = {
        "ChatCompletionRequest": ("messages", "tools", "documents"),
        "CreateRequest": ("input", "tools", "documents"),
        "MessagesRequest": ("messages", "system", "tools"),
        "ChatBody": ("messages", "tools"),
    }
    for name, fields in arrays.items():
        for field in fields:
            assert f"'maxItems': {CONTEXT}" in str(schemas[name]["properties"][field]), (name, field)
