"""Every field: its wrong types, its range, and what is not honoured, harmless or unknown."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from openai_bls.api.chat import schema
from openai_bls.api.chat.schema import MAX_BAD_WORDS, MAX_STOP_LENGTH, MAX_STOP_STRINGS
from openai_bls.api.chat.validation import Body, parse_object
from openai_bls.api.common.fields import without_effect
from openai_bls.core.engine_types import SamplingParams
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.chat.chat_support import ENDPOINTS, MINIMAL, SCHEMAS, asked_for, parse, refused

# --- every field's wrong type and range ---

NOT_INT = ["1", 1.5, True, [], {}]
NOT_NUMBER = ["1", True, [], {}]
NOT_BOOL = ["true", 1, 0.0, [], {}]
NOT_STRING = [1, True, 1.5, [], {}]
NOT_OBJECT = ["{}", 1, True, []]
HUGE = [2**31, 2**63, 2**64, 10**30]

BAD_SHARED: dict[str, list[Any]] = {
    **dict.fromkeys(SamplingParams.__struct_fields__, NOT_NUMBER),
    "model": NOT_STRING,
    "user": NOT_STRING,
    "service_tier": NOT_STRING,
    "safety_identifier": NOT_STRING,
    "prompt_cache_key": NOT_STRING,
    "prompt_cache_retention": NOT_STRING,
    "prompt_cache_options": NOT_OBJECT,
    "priority": [*NOT_INT, 2**63, -(2**63) - 1, 10**30],
    "metadata": NOT_OBJECT,
    "kv_transfer_params": NOT_OBJECT,
    "store": NOT_BOOL,
    "n": [*NOT_INT, *HUGE, 0, -1],
    "stop": [
        *(1, True, {}, [1], [None], "", [""], ["a", ""]),
        *(["a"] * (MAX_STOP_STRINGS + 1), "x" * (MAX_STOP_LENGTH + 1)),
    ],
    "stream": NOT_BOOL,
    "stream_options": [*NOT_OBJECT, {"include_usage": 1}, {"other": True}, {"include_usage": True}],
    "temperature": [*NOT_NUMBER, -0.01, 2.01, -1],
    "top_p": [*NOT_NUMBER, -0.1, 1.01],
    "min_p": [*NOT_NUMBER, -0.1, 1.01],
    "top_k": [*NOT_INT, *HUGE, -2],
    "seed": [*NOT_INT, -(2**63) - 1, 2**64, 10**30],
    "stop_token_ids": ["1", 1, True, {}, ["1"], [1.5], [-1], [2**31], [True]],
    "allowed_token_ids": ["1", 1, True, {}, ["1"], [1.5], [-1], [2**31], [True], [], [1] * 1025],
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
    "json_schema": [1],
    "regex": [1, ""],
    "ebnf": [1, ""],
}
BAD: dict[Body, dict[str, list[Any]]] = {
    "chat.completions": {
        **BAD_SHARED,
        "messages": [None, "hi", 1, {}, [], [1], ["hi"], [[]], [{}]],
        "max_tokens": [*NOT_INT, *HUGE, 0, -1],
        "max_completion_tokens": [*NOT_INT, *HUGE, 0, -1],
        "logprobs": NOT_BOOL,
        "top_logprobs": [*NOT_INT, -1, 21, 5],
        "n_predict": [*NOT_INT, *HUGE, 0, -2],
        "reasoning_effort": [*NOT_STRING, "x" * 33],
        "enable_thinking": NOT_BOOL,
        "thinking": [1, "enabled", [], {}, {"type": "x"}],
        "think": [1, [], {}, "x" * 33],
        "thinking_token_budget": [*NOT_INT, -1],
        "reasoning": [1, True, "high", [], {"effort": 1}, {"max_tokens": -1}, {"x": 1}],
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


# Other servers' fields without effect, of any type.
ANYTHING = {
    f.name for cls in SCHEMAS.values() for f in msgspec.structs.fields(cls) if f.type is Any and f.default is None
}


def test_the_table_of_bad_values_has_every_field() -> None:
    for endpoint in ENDPOINTS:
        assert set(BAD[endpoint]) | set(schema.UNSUPPORTED_IN_CHAT) | BACKEND_ONLY | set(ANYTHING) >= set(
            SCHEMAS[endpoint].__struct_fields__
        )
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
    "allowed_token_ids": [([1, 2, 1], (1, 2))],
    "ignore_eos": [(True, True)],
    "include_stop_str_in_output": [(True, True)],
    "skip_special_tokens": [(False, False)],
    "frequency_penalty": [(-2, -2.0)],
    "presence_penalty": [(2, 2.0)],
    "repetition_penalty": [(1.2, 1.2)],
    "logit_bias": [({"7": -100, "8": 1.5}, {7: -100.0, 8: 1.5}), ({}, {})],
    "min_tokens": [(3, 3)],
    "bad_words": [(["a", "b c"], ["a", "b c"])],
    "truncate_prompt_tokens": [(5, 5)],
    "timeout": [(1, 1.0), (0.001, 0.001), (86400, 86400.0)],
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("field", "given", "wanted"), [(field, *case) for field in GOOD for case in GOOD[field]])
def test_good_values(endpoint: Body, field: str, given: Any, wanted: Any) -> None:
    assert asked_for(parse(endpoint, {**MINIMAL[endpoint], field: given}), field) == wanted


def test_the_smallest_nucleus_is_the_likeliest_token() -> None:
    for endpoint in ENDPOINTS:
        found = parse(endpoint, {**MINIMAL[endpoint], "top_p": 0, "top_k": 40})
        assert (asked_for(found, "top_p"), asked_for(found, "top_k")) == (None, 1)


# --- what is not honoured, what is without effect, what is unknown ---


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("field", schema.UNSUPPORTED_IN_CHAT)
def test_a_field_that_is_not_honoured_is_accepted_at_its_neutral_values_only(endpoint: Body, field: str) -> None:
    table = schema.UNSUPPORTED_IN_CHAT if endpoint == "chat.completions" else schema.UNSUPPORTED
    if field not in table and field in SCHEMAS[endpoint].__struct_fields__:
        return
    if field not in SCHEMAS[endpoint].__struct_fields__:
        assert refused(endpoint, {**MINIMAL[endpoint], field: None}).code == "unknown_parameter"
        return
    plain = parse(endpoint, MINIMAL[endpoint])
    neutral = schema.UNSUPPORTED_IN_CHAT[field].values
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
    assert set(schema.UNSUPPORTED_IN_CHAT) <= fields
    every = [f for cls in SCHEMAS.values() for f in msgspec.structs.fields(cls)]
    taken = {name for cls in SCHEMAS.values() for name in without_effect(cls)}
    untyped = {f.name for f in every if getattr(f.type, "__origin__", f.type) is Any}
    assert untyped - taken == set(schema.UNSUPPORTED_IN_CHAT) | set(schema.STRUCTURED_FIELDS)


OPENAIS_WITHOUT_EFFECT = {
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "implicit"},
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_fields_without_effect_are_taken_and_named(endpoint: Body) -> None:
    given = {**dict.fromkeys(without_effect(SCHEMAS[endpoint]), "x"), **OPENAIS_WITHOUT_EFFECT}
    found = parse(endpoint, {**MINIMAL[endpoint], **given})
    assert set(found.ignored) == set(given)
    plain = parse(endpoint, MINIMAL[endpoint])
    assert msgspec.structs.replace(found, ignored=()) == plain
    assert parse(endpoint, {**MINIMAL[endpoint], **dict.fromkeys(given)}) == plain


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("field", ["tool_use_prompt", "Temperature", "", "a`b", "a\nb", "$.x", "中", " - at `$.n`"])
def test_unknown_fields_are_refused_by_name(endpoint: Body, field: str) -> None:
    error = refused(endpoint, {**MINIMAL[endpoint], field: 1})
    assert (error.param, error.code) == (field, "unknown_parameter")
