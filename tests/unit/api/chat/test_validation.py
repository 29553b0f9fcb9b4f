from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.chat import schema
from openai_bls.api.chat.schema import MAX_BAD_WORDS, MAX_STOP_LENGTH, MAX_STOP_STRINGS
from openai_bls.api.chat.validation import Body, parse_json, parse_object
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

USER = {"role": "user", "content": "hi"}
MINIMAL: dict[Body, dict[str, Any]] = {"chat.completions": {"messages": [USER]}, "completions": {"prompt": "hi"}}
ENDPOINTS: tuple[Body, ...] = ("chat.completions", "completions")
SCHEMAS: dict[Body, type[schema.ChatCompletionRequest | schema.CompletionRequest]] = {
    "chat.completions": schema.ChatCompletionRequest,
    "completions": schema.CompletionRequest,
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def parse(endpoint: Body, body: dict[str, Any]) -> ValidRequest:
    """By both entrances, which must agree."""
    by_text = parse_json(endpoint, json.dumps(body).encode())
    assert parse_object(endpoint, body) == by_text
    return by_text


def refused(endpoint: Body, body: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as by_text:
        parse_json(endpoint, json.dumps(body).encode())
    with pytest.raises(InvalidRequestError) as by_object:
        parse_object(endpoint, body)
    error = by_text.value
    assert (by_object.value.param, by_object.value.code) == (error.param, error.code)
    assert error.status == 400
    inner = error.body()["error"]
    assert set(inner) == {"message", "type", "param", "code"}
    assert inner["type"] == "invalid_request_error"
    # The message names the field, if not its whole path.
    assert error.param is None or error.param.rpartition(".")[2] in error.message
    return error


def chat(**fields: Any) -> ValidRequest:
    return parse("chat.completions", {**MINIMAL["chat.completions"], **fields})


def messages(*items: Any) -> list[dict[str, Any]]:
    prompt = parse("chat.completions", {"messages": list(items)}).prompt
    assert prompt is not None
    assert prompt.messages is not None
    return prompt.messages


def bad_messages(*items: Any) -> InvalidRequestError:
    return refused("chat.completions", {"messages": list(items)})


# --- every field's wrong type and range ---

NOT_INT = ["1", 1.5, True, [], {}]
NOT_NUMBER = ["1", True, [], {}]
NOT_BOOL = ["true", 1, 0.0, [], {}]
NOT_STRING = [1, True, 1.5, [], {}]
NOT_OBJECT = ["{}", 1, True, []]
HUGE = [2**31, 2**63, 2**64, 10**30]

BAD_SHARED: dict[str, list[Any]] = {
    "model": NOT_STRING,
    "user": NOT_STRING,
    "service_tier": NOT_STRING,
    "safety_identifier": NOT_STRING,
    "prompt_cache_key": NOT_STRING,
    "prompt_cache_retention": NOT_STRING,
    "metadata": NOT_OBJECT,
    "store": NOT_BOOL,
    "n": [*NOT_INT, *HUGE, 0, -1],
    "stop": [
        *(1, True, {}, [1], [None], "", [""], ["a", ""]),
        *(["a"] * (MAX_STOP_STRINGS + 1), "x" * (MAX_STOP_LENGTH + 1)),
    ],
    "stream": NOT_BOOL,
    "stream_options": [*NOT_OBJECT, {"include_usage": 1}, {"other": True}, {"include_usage": True}],
    "temperature": [*NOT_NUMBER, -0.01, 2.01, -1],
    "top_p": [*NOT_NUMBER, 0, -0.1, 1.01],
    "min_p": [*NOT_NUMBER, -0.1, 1.01],
    "top_k": [*NOT_INT, *HUGE, -2],
    "seed": [*NOT_INT, -(2**63) - 1, 2**64, 10**30],
    "stop_token_ids": ["1", 1, True, {}, ["1"], [1.5], [-1], [2**31], [True]],
    "ignore_eos": NOT_BOOL,
    "include_stop_str_in_output": NOT_BOOL,
    "skip_special_tokens": NOT_BOOL,
    "add_special_tokens": NOT_BOOL,
    "frequency_penalty": [*NOT_NUMBER, -2.01, 2.01],
    "presence_penalty": [*NOT_NUMBER, -2.01, 2.01],
    "repetition_penalty": [*NOT_NUMBER, 0, -1, 100.5],
    "logit_bias": [
        *(*NOT_OBJECT, {"a": 1}, {"-1": 1}, {"1_0": 1}, {" 1": 1}, {"١": 1}),
        *({"1": 101}, {"1": -101}, {"1": "x"}),
    ],
    "min_tokens": [*NOT_INT, -1],
    "bad_words": ["a", 1, {}, [1], [""], ["x" * (MAX_STOP_LENGTH + 1)], ["a"] * (MAX_BAD_WORDS + 1)],
    "truncate_prompt_tokens": [*NOT_INT, *HUGE, 0, -1],
    "timeout": [*NOT_NUMBER, 0, -1, 86401],
    # Their rules are those of `openai_bls.output.structured`.
    "response_format": [1, "json_object", {"type": "xml"}],
    "structured_outputs": [1, {}, {"json": {}, "regex": "a"}],
    "guided_json": [1],
    "guided_regex": [1],
    "guided_choice": [1, []],
    "guided_grammar": [1],
    "guided_json_object": [1],
}
BAD: dict[Body, dict[str, list[Any]]] = {
    "chat.completions": {
        **BAD_SHARED,
        "messages": [None, "hi", 1, {}, [], [1], ["hi"], [[]], [{}]],
        "max_tokens": [*NOT_INT, *HUGE, 0, -1],
        "max_completion_tokens": [*NOT_INT, *HUGE, 0, -1],
        "logprobs": NOT_BOOL,
        "top_logprobs": [*NOT_INT, -1, 21, 5],
        "reasoning_effort": [*NOT_STRING, "x" * 33],
        "include_reasoning": NOT_BOOL,
        "documents": [{}, "d", [1]],
        "prediction": [*NOT_OBJECT, {}, {"type": "content"}, {"type": "x", "content": "a"}],
        "chat_template": NOT_STRING,
        "tools": [
            *({}, "f", 1, [1], [{}], [{"type": "function"}], [{"type": "web_search"}]),
            [{"type": "function", "function": {}}],
        ],
        "tool_choice": [
            *(1, True, [], {}, "", "AUTO", "any", "auto", "required", {"type": "function"}),
            *({"type": "custom", "function": {}}, {"type": "function", "function": {"name": "f"}}),
        ],
        "parallel_tool_calls": NOT_BOOL,
        "chat_template_kwargs": NOT_OBJECT,
        "add_generation_prompt": NOT_BOOL,
        "continue_final_message": NOT_BOOL,
    },
    "completions": {
        **BAD_SHARED,
        "max_tokens": [*NOT_INT, *HUGE, 0, -1],
        "logprobs": [*NOT_INT, -1, 21],
        "best_of": [*NOT_INT, *HUGE, 0, -1],
        "prompt": [None, 1, True, {}, [], [None], [True], [1.5], [-1], [2**31], [[-1]], [["a"]], [1, "a"], [[1], 2]],
        "echo": NOT_BOOL,
    },
}
BAD_CASES = [
    pytest.param(endpoint, field, value, id=f"{endpoint}-{field}-{str(value)[:25]}")
    for endpoint in ENDPOINTS
    for field, values in BAD[endpoint].items()
    for value in values
]


# Of older clients; what `openai_bls.output.structured` says of them is tested there.
BACKEND_ONLY = {"guided_decoding_backend", "guided_whitespace_pattern"}


def test_the_table_of_bad_values_has_every_field() -> None:
    for endpoint in ENDPOINTS:
        assert set(BAD[endpoint]) | set(schema.UNSUPPORTED) | BACKEND_ONLY >= set(SCHEMAS[endpoint].__struct_fields__)
        assert set(BAD[endpoint]) <= set(SCHEMAS[endpoint].__struct_fields__)


@pytest.mark.parametrize(("endpoint", "field", "value"), BAD_CASES)
def test_a_bad_value_is_refused_by_name(endpoint: Body, field: str, value: Any) -> None:
    error = refused(endpoint, {**MINIMAL[endpoint], field: value})
    assert error.param is not None
    # The field itself, or the place in it.
    assert error.param.split(".")[0].split("[")[0] == field


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "timeout"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_only_grpc_can_say_are_refused_too(field: str, value: float) -> None:
    with pytest.raises(InvalidRequestError) as info:
        parse_object("completions", {"prompt": "hi", field: value})
    assert info.value.param == field


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_null_is_as_good_as_absent(endpoint: Body) -> None:
    plain = parse(endpoint, MINIMAL[endpoint])
    for field in SCHEMAS[endpoint].__struct_fields__:
        if field not in MINIMAL[endpoint]:
            assert parse(endpoint, {**MINIMAL[endpoint], field: None}) == plain, field


# Field of a request and of the valid one: (what is given, what it becomes).
GOOD: dict[str, list[tuple[Any, Any]]] = {
    "model": [("m", "m")],
    "n": [(3, 3)],
    "max_tokens": [(1, 1), (2**31 - 1, 2**31 - 1)],
    "stop": [
        *(("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())),
        *((["a"] * MAX_STOP_STRINGS, ("a",) * MAX_STOP_STRINGS), ("x" * MAX_STOP_LENGTH, ("x" * MAX_STOP_LENGTH,))),
    ],
    "stream": [(True, True)],
    "temperature": [(0, 0.0), (2.0, 2.0)],
    "top_p": [(1, 1.0), (1e-9, 1e-9)],
    "min_p": [(0, 0.0), (1, 1.0)],
    "top_k": [(-1, 0), (0, 0), (40, 40)],
    "seed": [(0, 0), (-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)],
    "stop_token_ids": [([1, 2], (1, 2))],
    "ignore_eos": [(True, True)],
    "include_stop_str_in_output": [(True, True)],
    "skip_special_tokens": [(False, False)],
    "frequency_penalty": [(-2, -2.0)],
    "presence_penalty": [(2, 2.0)],
    "repetition_penalty": [(1.2, 1.2)],
    "logit_bias": [({"7": -100, "8": 1.5}, {7: -100.0, 8: 1.5}), ({}, {})],
    "min_tokens": [(3, 3)],
    "bad_words": [(["a", "b c"], ("a", "b c"))],
    "truncate_prompt_tokens": [(5, 5)],
    "timeout": [(1, 1.0), (0.001, 0.001), (86400, 86400.0)],
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("field", "given", "value"), [(field, *case) for field in GOOD for case in GOOD[field]])
def test_good_values(endpoint: Body, field: str, given: Any, value: Any) -> None:
    assert getattr(parse(endpoint, {**MINIMAL[endpoint], field: given}), field) == value


# --- what is not honoured, what is harmless, what is unknown ---


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("field", schema.UNSUPPORTED)
def test_a_field_that_is_not_honoured_is_accepted_at_its_neutral_values_only(endpoint: Body, field: str) -> None:
    if field not in SCHEMAS[endpoint].__struct_fields__:
        assert refused(endpoint, {**MINIMAL[endpoint], field: None}).code == "unknown_parameter"
        return
    plain = parse(endpoint, MINIMAL[endpoint])
    neutral = schema.UNSUPPORTED[field].values
    for value in (*neutral, None):
        assert parse(endpoint, {**MINIMAL[endpoint], field: value}) == plain
    candidates = [0, 1, 2, 0.5, -1, True, False, "", "x", "none", "high", [], ["text", "audio"], {}, {"50256": -100}]
    for value in [*candidates, {"type": "json_object"}, {"type": "text", "x": 1}, [None], [[]]]:
        if any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in neutral):
            continue
        error = refused(endpoint, {**MINIMAL[endpoint], field: value})
        assert (error.param, error.code) == (field, "unsupported_parameter")
        for allowed in (*neutral, None):
            assert json.dumps(allowed) in error.message


def test_every_field_that_is_not_honoured_belongs_to_some_request() -> None:
    fields = {field for cls in SCHEMAS.values() for field in cls.__struct_fields__}
    assert set(schema.UNSUPPORTED) <= fields
    every = [f for cls in SCHEMAS.values() for f in msgspec.structs.fields(cls)]
    untyped = {f.name for f in every if getattr(f.type, "__origin__", f.type) is Any}
    assert untyped == set(schema.UNSUPPORTED) | set(schema.STRUCTURED_FIELDS)


@pytest.mark.parametrize("content", ["a b", [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]])
def test_a_prediction(content: Any) -> None:
    request = parse("chat.completions", {"messages": [USER], "prediction": {"type": "content", "content": content}})
    assert request.prediction == "a b"
    assert request.prompt is not None
    assert request.prompt.prediction == "a b"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_harmless_fields_change_nothing(endpoint: Body) -> None:
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
    }
    assert set(harmless) == set(schema.Harmless.__struct_fields__)
    assert parse(endpoint, {**MINIMAL[endpoint], **harmless}) == parse(endpoint, MINIMAL[endpoint])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("field", ["allowed_token_ids", "Temperature", "", "a`b", "a\nb", "$.x", "中", " - at `$.n`"])
def test_unknown_fields_are_refused_by_name(endpoint: Body, field: str) -> None:
    error = refused(endpoint, {**MINIMAL[endpoint], field: 1})
    assert (error.param, error.code) == (field, "unknown_parameter")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff", b'{"seed": NaN}', b'{"user": "\xff"}', b"{1: 2}"]
)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_body_that_is_no_object(endpoint: Body, body: bytes) -> None:
    with pytest.raises(InvalidRequestError) as info:
        parse_json(endpoint, body)
    assert info.value.param is None


@pytest.mark.parametrize(
    "tail",
    [
        b'"metadata":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
        b'"guided_json":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'"chat_template_kwargs":{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    ],
)
def test_deep_nesting_is_the_requests_fault(tail: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="too deeply"):
        parse_json("chat.completions", b'{"messages":[{"role":"user","content":"x"}],' + tail)


def test_a_schema_that_is_too_deep_to_walk_through() -> None:
    """Wherever the bounds of those lie that walk through it: it is taken or refused, never more."""
    refusals: list[str] = []
    deep: dict[str, Any] = {}
    for depth in range(3000):
        deep = {"a": deep}
        if depth % 100 == 99:
            tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
            for fields in ({"tools": [tool]}, {"guided_json": deep}):
                try:
                    parse_object("chat.completions", {"messages": [USER], **fields})
                except InvalidRequestError as error:
                    refusals.append(error.message)
    assert refusals
    assert all("nested" in message for message in refusals)


# --- messages ---


def test_roles_and_contents_as_templates_know_them() -> None:
    assert messages(
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        {"role": "assistant", "content": "e", "refusal": None, "annotations": [], "audio": None},
        {"role": "assistant", "content": None, "refusal": "f"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "g"}]},
        {"role": "tool", "content": "h", "tool_call_id": "i"},
        {"role": "assistant", "content": "a", "reasoning_content": "t"},
        {"role": "assistant", "content": "a", "reasoning": "t"},
    ) == [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b", "name": "n"},
        {"role": "user", "content": "c\nd"},
        {"role": "assistant", "content": "e"},
        {"role": "assistant", "content": "f"},
        {"role": "assistant", "content": "g"},
        {"role": "tool", "tool_call_id": "i", "content": "h"},
        *[{"role": "assistant", "reasoning_content": "t", "content": "a"}] * 2,
    ]


def test_tool_calls_come_back_with_parsed_arguments() -> None:
    call = {"type": "function", "id": "c1", "index": 0, "function": {"name": "f", "arguments": '{"a": [1]}'}}
    bare = {"type": "function", "function": {"name": "g", "arguments": ""}}
    assert messages({"role": "assistant", "content": None, "tool_calls": [call, bare]}) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"a": [1]}}},
                {"type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        }
    ]


@pytest.mark.parametrize("arguments", ["{", "[]", "1", "null", "[" * 50_000, '{"a": ' + "9" * 10_000 + "}"])
def test_arguments_that_are_no_json_object(arguments: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    error = bad_messages(USER, {"role": "assistant", "tool_calls": [call]})
    assert error.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "role"),
        ({"role": "bot", "content": "x"}, "role"),
        ({"role": 1, "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content[0].type"),
        ({"role": "user", "content": "x", "tool_calls": []}, "tool_calls"),
        ({"role": "user", "content": "x", "name": 1}, "name"),
        ({"role": "system", "content": "x", "extra": 1}, "extra"),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "tool_call_id"),
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{"type": "function", "function": {}}]}, "tool_calls[0].function.name"),
    ],
)
def test_bad_messages_are_refused_by_place(message: dict[str, Any], param: str) -> None:
    assert bad_messages(USER, message).param == f"messages[1].{param}"


def test_other_media_are_refused_with_a_reason() -> None:
    for kind in ("image_url", "input_audio", "file"):
        assert "text is the only modality" in bad_messages({"role": "user", "content": [{"type": kind}]}).message


# --- fields that belong together ---


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, name: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name)]}}


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        ("chat.completions", {"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        # 16 is the default there.
        ("completions", {"min_tokens": 17}, "min_tokens"),
        ("completions", {"n": 3, "best_of": 2}, "best_of"),
        ("completions", {"best_of": 2, "stream": True}, "best_of"),
        ("completions", {"messages": [USER]}, "messages"),
        ("chat.completions", {"prompt": "x"}, "prompt"),
        ("chat.completions", {"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ("chat.completions", {"stream": False, "stream_options": {}}, "stream_options"),
        ("chat.completions", {"stream": None, "stream_options": {}}, "stream_options"),
        ("chat.completions", {"tool_choice": "auto"}, "tool_choice"),
        ("chat.completions", {"tools": [TOOL], "tool_choice": named("nope")}, "tool_choice"),
        ("chat.completions", {"tools": [TOOL], "tool_choice": allowed("auto", "nope")}, "tool_choice"),
        ("chat.completions", {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        *(
            ("chat.completions", {"tools": [TOOL, named(name)]}, "tools[1].function.name")
            for name in ("", "a b", "x" * 129, "é", "f\n", 1, None)
        ),
    ],
)
def test_fields_that_do_not_fit_together(endpoint: Body, fields: dict[str, Any], param: str) -> None:
    assert refused(endpoint, {**MINIMAL[endpoint], **fields}).param == param


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        (
            "chat.completions",
            {},
            {"logprobs": None, "max_tokens": None, "prompt_count": 1, "parallel_tool_calls": True},
        ),
        ("chat.completions", {"logprobs": False}, {"logprobs": None}),
        ("chat.completions", {"response_format": {"type": "text"}}, {"structured": None}),
        ("chat.completions", {"logprobs": True}, {"logprobs": 0}),
        ("chat.completions", {"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ("completions", {"logprobs": 0}, {"logprobs": 0}),
        ("completions", {"logprobs": 5}, {"logprobs": 5}),
        ("chat.completions", {"max_completion_tokens": 6, "min_tokens": 6}, {"max_tokens": 6, "min_tokens": 6}),
        ("completions", {"max_tokens": 0, "echo": True}, {"max_tokens": 0, "echo": True}),
        ("completions", {}, {"max_tokens": None, "default_max_tokens": 16, "echo": False}),
        ("completions", {"prompt": ["x", "y"], "n": 2, "best_of": 3}, {"n": 2, "candidates": 3, "prompt_count": 2}),
        ("completions", {"n": 2}, {"candidates": 2}),
        ("completions", {"best_of": 1, "stream": True}, {"candidates": 1}),
        ("completions", {"prompt": [1, 2]}, {"prompt": None, "prompt_token_ids": [[1, 2]], "prompt_count": 1}),
        ("completions", {"prompt": [[1], [2]]}, {"prompt": None, "prompt_token_ids": [[1], [2]], "prompt_count": 2}),
        ("completions", {"prompt": [[1], [2]], "bad_words": ["w"]}, {"prompt_token_ids": [[1], [2]]}),
        ("chat.completions", {"tools": [TOOL], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        *(
            (
                "chat.completions",
                {"stream": True, "stream_options": dict.fromkeys(options, True) | {"include_obfuscation": False}},
                {
                    "include_usage": "include_usage" in options,
                    "continuous_usage_stats": len(options) == 2,
                },
            )
            for options in (
                ("include_usage",),
                ("continuous_usage_stats",),
                ("include_usage", "continuous_usage_stats"),
            )
        ),
    ],
)
def test_fields_that_fit_together(endpoint: Body, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    request = parse(endpoint, {**MINIMAL[endpoint], **fields})
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        ("completions", {"prompt": "a"}, {"prompts": ["a"], "bad_words": []}),
        ("completions", {"prompt": ["a", "b"]}, {"prompts": ["a", "b"]}),
        ("completions", {"prompt": [[1], [2]], "bad_words": ["w"]}, {"prompts": [], "bad_words": ["w"]}),
        (
            "chat.completions",
            {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False},
            {"chat_template_kwargs": {"enable_thinking": False, "add_generation_prompt": False}},
        ),
        (
            "chat.completions",
            {"continue_final_message": True},
            {"chat_template_kwargs": {"continue_final_message": True, "add_generation_prompt": False}},
        ),
    ],
)
def test_what_preprocessing_gets(endpoint: Body, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    prompt = parse(endpoint, {**MINIMAL[endpoint], **fields}).prompt
    assert prompt is not None
    assert {name: getattr(prompt, name) for name in expected} == expected


@pytest.mark.parametrize(("endpoint", "field"), [("chat.completions", "messages"), ("completions", "prompt")])
def test_what_is_missing_is_named(endpoint: Body, field: str) -> None:
    error = refused(endpoint, {})
    assert (error.param, error.code) == (field, "missing_required_parameter")


def test_tools_are_offered_unless_the_choice_is_none() -> None:
    fields: dict[str, Any]
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": None}):
        request = chat(tools=[TOOL], **fields)
        assert request.tools
        assert request.prompt is not None
        assert request.prompt.tools == [TOOL]
    for fields in ({"tools": [TOOL], "tool_choice": "none"}, {"tools": []}, {"tools": [], "tool_choice": "auto"}):
        request = chat(**fields)
        assert not request.tools
        assert request.prompt is not None
        assert request.prompt.tools is None
    assert chat(tool_choice="none").tools is None
    assert chat(tools=[TOOL], parallel_tool_calls=False).parallel_tool_calls is False
    assert chat(tools=[TOOL]).parallel_tool_calls is True


def test_choices_that_force_or_restrict_calls() -> None:
    other = {"type": "function", "function": {"name": "g", "strict": True}}
    free = chat(tools=[TOOL]).tools
    assert free is not None
    assert (free.required, free.name, free.checked) == (False, None, False)
    required = chat(tools=[TOOL, other], tool_choice="required").tools
    assert required is not None
    assert (required.required, required.name, required.callable) == (True, None, [TOOL, other])
    named = chat(tools=[TOOL, other], tool_choice={"type": "function", "function": {"name": "g"}}).tools
    assert named is not None
    assert (named.required, named.name, named.callable) == (True, "g", [other])
    assert named.offered == [TOOL, other]
    # A function that is strict is checked although nothing need be called.
    strict = chat(tools=[TOOL, other]).tools
    assert strict is not None
    assert (strict.required, strict.checked) == (False, True)
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "f"}}]}
        some = chat(tools=[TOOL, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).tools
        assert some is not None
        assert (some.required, some.checked, some.callable) == (mode == "required", True, [TOOL])


# --- anything at all ---

FIELD_NAMES = sorted({field for cls in SCHEMAS.values() for field in cls.__struct_fields__})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
WORDS = st.sampled_from(
    ["role", "user", "assistant", "tool", "content", "type", "text", "function", "tool_calls", "name", "arguments"]
)
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NEAR_MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name", "refusal"]), VALUES, max_size=4),
    max_size=3,
)


@given(st.sampled_from(ENDPOINTS), st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(deadline=None, max_examples=150)
def test_any_bytes_are_a_request_or_a_400(endpoint: Body, body: bytes) -> None:
    try:
        assert isinstance(parse_json(endpoint, body), ValidRequest)
    except InvalidRequestError as error:
        msgspec.json.encode(error.body())


@given(
    st.sampled_from(ENDPOINTS),
    VALUES | st.dictionaries(st.sampled_from(FIELD_NAMES) | st.text(max_size=5), VALUES, max_size=6),
)
@settings(deadline=None, max_examples=300)
def test_any_json_is_a_request_or_a_400(endpoint: Body, body: Any) -> None:
    _is_a_request_or_a_400(endpoint, body)


# Few at once: the first bad one ends the parsing.
NEAR_FIELDS = st.sampled_from(["stop", "tools", "tool_choice", "stream_options", "seed", "n", "metadata"])


@given(NEAR_MESSAGES, st.dictionaries(NEAR_FIELDS, VALUES, max_size=2))
@settings(deadline=None, max_examples=300)
def test_nearly_right_chats(messages: list[Any], fields: dict[str, Any]) -> None:
    _is_a_request_or_a_400("chat.completions", {"messages": messages, **fields})


@given(st.fixed_dictionaries({"prompt": VALUES}, optional=dict.fromkeys(("echo", "stop", "max_tokens"), VALUES)))
@settings(deadline=None, max_examples=200)
def test_nearly_right_completions(body: dict[str, Any]) -> None:
    _is_a_request_or_a_400("completions", body)


def _is_a_request_or_a_400(endpoint: Body, body: Any) -> None:
    try:
        assert isinstance(parse_json(endpoint, json.dumps(body).encode()), ValidRequest)
    except InvalidRequestError as error:
        msgspec.json.encode(error.body())
    if isinstance(body, dict):
        try:
            assert isinstance(parse_object(endpoint, body), ValidRequest)
        except InvalidRequestError as error:
            msgspec.json.encode(error.body())
