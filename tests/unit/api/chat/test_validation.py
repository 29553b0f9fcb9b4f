from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.chat.validation import Body, parse_json, parse_object
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.media import ImageSource
from openai_bls.core.request import ToolUse, ValidRequest
from tests.unit.api.chat.chat_support import ENDPOINTS, MINIMAL, SCHEMAS, TOOL, USER, parse, refused


def messages(*items: Any) -> list[dict[str, Any]]:
    prompt = parse("chat.completions", {"messages": list(items)}).prompt
    assert prompt is not None
    assert prompt.messages is not None
    return prompt.messages


def bad_messages(*items: Any) -> InvalidRequestError:
    return refused("chat.completions", {"messages": list(items)})


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


def arguments_of(text: str) -> Any:
    """The arguments of a call as a chat template gets them."""
    call = {"type": "function", "function": {"name": "f", "arguments": text}}
    return messages(USER, {"role": "assistant", "tool_calls": [call]})[1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    "arguments",
    [
        "{",
        "[]",
        "1",
        "null",
        '"{}"',
        "no JSON",
        '{"a": 1,}',
        '{"a": "b"',
        '{"a": "b" "c"}',
        "[" * 50_000,
        '{"a":' * 200 + "1" + "}" * 200,
        '{"a": ' + "9" * 10_000 + "}",
        f'{{"a": {2**64}}}',
        # More values than are decoded.
        '{"a": [' + "1," * 70_000 + "1]}",
    ],
)
def test_arguments_that_are_no_json_object_stay_text(arguments: str) -> None:
    assert arguments_of(arguments) == arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (" ", {}),
        ('{"a": "x\ny\tz\u0001"}', {"a": "x\ny\tz\x01"}),
        (r'{"a": "C:\dir\\new \d+ \u12"}', {"a": "C:\\dir\\new \\d+ \\u12"}),
        (r'{"a": "\ud83d", "b": "\udc00\ud83d\ude00"}', {"a": "\ufffd", "b": "\ufffd\U0001f600"}),
        (r'{"a": "\\ud83d"}', {"a": r"\ud83d"}),
    ],
)
def test_arguments_are_read_leniently(arguments: str, expected: Any) -> None:
    assert arguments_of(arguments) == expected


def test_half_a_surrogate_pair_anywhere_is_a_replacement_character() -> None:
    half = "\ud83d"
    call = {"type": "function", "id": half, "function": {"name": "f", "arguments": half}}
    body = {
        "messages": [
            {"role": "user", "content": half},
            {"role": "assistant", "content": half, "reasoning_content": "x\ude00" + half, "tool_calls": [call]},
            {"role": "tool", "content": [{"type": "text", "text": "\U0001f600" + half}]},
        ]
    }
    prompt = parse_json("chat.completions", json.dumps(body).encode()).prompt
    assert prompt is not None
    assert prompt.messages is not None
    assert [message["content"] for message in prompt.messages] == ["\ufffd", "\ufffd", "\U0001f600\ufffd"]
    assert prompt.messages[1]["reasoning_content"] == "x\ufffd\ufffd"
    assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == "\ufffd"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"content": None},
        {"content": None, "tool_calls": []},
        {"content": None, "tool_calls": None},
        {"content": ""},
        {"content": []},
    ],
)
def test_an_assistant_may_have_said_nothing(fields: dict[str, Any]) -> None:
    assert messages(USER, {"role": "assistant", **fields}, USER)[1] == {"role": "assistant", "content": ""}
    thought = messages(USER, {"role": "assistant", "reasoning": "hm", **fields}, USER)[1]
    assert thought == {"role": "assistant", "reasoning_content": "hm", "content": ""}


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
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "file"}]}, "content[0].type"),
        ({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": "fine"}}]},
            "content[0].image_url.detail",
        ),
        ({"role": "user", "content": "x", "tool_calls": []}, "tool_calls"),
        ({"role": "user", "content": "x", "name": 1}, "name"),
        ({"role": "system", "content": "x", "extra": 1}, "extra"),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "tool_call_id"),
        ({"role": "assistant", "tool_calls": [{"type": "other"}]}, "tool_calls[0].type"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f"}}]},
            "tool_calls[0].custom.input",
        ),
        ({"role": "assistant", "tool_calls": [{"type": "function", "function": {}}]}, "tool_calls[0].function.name"),
    ],
)
def test_bad_messages_are_refused_by_place(message: dict[str, Any], param: str) -> None:
    assert bad_messages(USER, message).param == f"messages[1].{param}"


def test_images_stay_in_their_places() -> None:
    def image(**fields: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": fields}

    text = {"type": "text", "text": "What is it?"}
    request = parse_object(
        "chat.completions",
        {
            "messages": [
                {"role": "user", "content": [image(url="data:a"), text, image(url="https://b/c", detail="low")]},
                {"role": "assistant", "content": [text]},
                {"role": "tool", "content": [image(file_id="file-1", detail="high")]},
            ]
        },
    )
    assert request.prompt is not None
    assert request.prompt.messages == [
        {"role": "user", "content": [{"type": "image"}, text, {"type": "image"}]},
        {"role": "assistant", "content": "What is it?"},
        {"role": "tool", "content": [{"type": "image"}]},
    ]
    assert request.images == (
        ImageSource("data:a", "messages[0].content[0].image_url"),
        ImageSource("https://b/c", "messages[0].content[2].image_url", "low"),
        ImageSource("", "messages[2].content[0].image_url", "high", "file-1"),
    )


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
        (
            "chat.completions",
            {"tools": [TOOL], "tool_choice": allowed("auto", "nope")},
            "tool_choice.allowed_tools.tools[0]",
        ),
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
        ("completions", {"priority": -(2**63)}, {"priority": -(2**63)}),
        ("chat.completions", {"priority": None}, {"priority": 0}),
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
        *(
            ("chat.completions", {"prediction": {"type": "content", "content": content}}, {"prediction": "a b"})
            for content in ("a b", [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}])
        ),
    ],
)
def test_what_preprocessing_gets(endpoint: Body, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    request = parse(endpoint, {**MINIMAL[endpoint], **fields})
    assert request.prompt is not None
    assert {name: getattr(request.prompt, name) for name in expected} == expected


@pytest.mark.parametrize(("endpoint", "field"), [("chat.completions", "messages"), ("completions", "prompt")])
def test_what_is_missing_is_named(endpoint: Body, field: str) -> None:
    error = refused(endpoint, {})
    assert (error.param, error.code) == (field, "missing_required_parameter")


OTHER = {"type": "function", "function": {"name": "g", "strict": True}}
OFFERED = {"offered": [TOOL], "callable": [TOOL]}


@pytest.mark.parametrize(
    ("tools", "choice", "expected"),
    [
        *(([TOOL], choice, OFFERED) for choice in ("auto", None)),
        ([TOOL], "none", None),
        *(([], choice, None) for choice in (None, "auto", "none")),
        (None, "none", None),
        ([TOOL], "required", {**OFFERED, "required": True}),
        # A function that is strict is checked although nothing need be called.
        ([TOOL, OTHER], None, {"offered": [TOOL, OTHER], "callable": [TOOL, OTHER], "checked": True}),
        (
            [TOOL, OTHER],
            named("g"),
            {"offered": [TOOL, OTHER], "callable": [OTHER], "required": True, "name": "g"},
        ),
        *(
            (
                [TOOL, OTHER],
                allowed(mode, "f"),
                {"offered": [TOOL, OTHER], "callable": [TOOL], "required": mode == "required", "checked": True},
            )
            for mode in ("auto", "required")
        ),
    ],
)
def test_tools_that_may_be_called(tools: Any, choice: Any, expected: dict[str, Any] | None) -> None:
    request = parse("chat.completions", {"messages": [USER], "tools": tools, "tool_choice": choice})
    assert request.tools == (None if expected is None else ToolUse(**expected))
    assert request.prompt is not None
    assert request.prompt.tools == (None if expected is None else expected["offered"])
    assert request.parallel_tool_calls is True


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


# Few at once: the first bad one ends the parsing.
NEAR_FIELDS = st.sampled_from(["stop", "tools", "tool_choice", "stream_options", "seed", "n", "metadata"])
NEAR_CHATS = st.builds(
    lambda messages, fields: {"messages": messages, **fields},
    NEAR_MESSAGES,
    st.dictionaries(NEAR_FIELDS, VALUES, max_size=2),
)
NEAR_COMPLETIONS = st.fixed_dictionaries(
    {"prompt": VALUES}, optional=dict.fromkeys(("echo", "stop", "max_tokens"), VALUES)
)
ANY_FIELDS = st.dictionaries(st.sampled_from(FIELD_NAMES) | st.text(max_size=5), VALUES, max_size=6)


@given(st.sampled_from(ENDPOINTS), VALUES | ANY_FIELDS | NEAR_CHATS | NEAR_COMPLETIONS)
@settings(deadline=None, max_examples=200)
def test_any_json_is_a_request_or_a_400(endpoint: Body, body: Any) -> None:
    entrances: list[Callable[[], ValidRequest]] = [lambda: parse_json(endpoint, json.dumps(body).encode())]
    if isinstance(body, dict):
        entrances.append(lambda: parse_object(endpoint, body))
    for entrance in entrances:
        try:
            assert isinstance(entrance(), ValidRequest)
        except InvalidRequestError as error:
            msgspec.json.encode(error.body())
