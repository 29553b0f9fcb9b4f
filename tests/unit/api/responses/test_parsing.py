"""Every field of a request: honoured, harmless or refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.responses import response_create_params as sdk

from openai_bls.api.responses import schema
from openai_bls.api.responses.parsing import CreateRequest, parse_count, parse_create
from openai_bls.api.responses.store import Inputs, References, ResponseStore, Stored
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ToolUse
from tests.unit.api.chat.chat_support import asked_for
from tests.unit.api.responses.responses_support import WEATHER

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
OTHER = {"type": "function", "name": "other", "parameters": None, "strict": None}


def references(store: ResponseStore | None = None) -> References:
    return References(store if store is not None else ResponseStore(), 10**6)


def parse(**body: Any) -> CreateRequest:
    return parse_create(msgspec.json.encode({"input": "hi", **body}), references())


def refused(kept: ResponseStore | None = None, /, **body: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_create(msgspec.json.encode({"input": "hi", **body}), references(kept))
    return caught.value


def tools(**body: Any) -> ToolUse:
    use = parse(tools=[WEATHER, OTHER], **body).chat.tools
    assert use is not None
    return use


def test_every_field_of_the_sdk_is_known_or_refused_by_name() -> None:
    """One that the SDK has had only of late is refused as unknown."""
    known = {field.encode_name for field in msgspec.structs.fields(schema.CreateRequest)}
    given = set(sdk.ResponseCreateParamsBase.__annotations__) | {"stream"}
    assert len(given & known) >= 30
    for name in given - known:
        error = refused(**{name: {}})
        assert (error.param, error.code) == (name, "unknown_parameter")


def test_every_field_is_in_one_place() -> None:
    names = set(schema.CreateRequest.__struct_fields__)
    assert set(schema.PASSED_ON) <= names
    refusable = {name for name in schema.UNSUPPORTED if "." not in name}
    assert refusable <= names
    assert not refusable & set(schema.PASSED_ON)
    unset = {field.name for field in msgspec.structs.fields(schema.CreateRequest) if field.default is msgspec.UNSET}
    assert unset == refusable | set(schema.PASSED_ON)
    reasoning = {name.partition(".")[2] for name in schema.UNSUPPORTED if name.startswith("reasoning.")}
    assert reasoning == set(schema.Reasoning.__struct_fields__) - {"effort"}


def test_the_defaults() -> None:
    chat = parse().chat
    assert (chat.max_tokens, chat.logprobs, chat.tools, chat.structured, chat.sampling_given) == (*(None,) * 4, ())
    assert chat.parallel_tool_calls
    assert chat.prompt is not None
    assert chat.prompt.messages == [{"role": "user", "content": "hi"}]


def test_what_is_passed_on() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 7,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "truncate_prompt_tokens": 9,
        "include_reasoning": False,
    }
    chat = parse(
        **given, stop="x", stop_token_ids=[1], bad_words=["b"], logit_bias={"5": 1}, chat_template_kwargs={"k": 1}
    ).chat
    assert {name: asked_for(chat, name) for name in given} == given
    assert (chat.stop, chat.stop_token_ids, chat.sampling.logit_bias) == (("x",), (1,), {5: 1.0})
    assert chat.prompt is not None
    assert (chat.prompt.bad_words, chat.prompt.chat_template_kwargs) == (["b"], {"k": 1})
    assert parse(model="m", max_output_tokens=4, parallel_tool_calls=False).chat.max_tokens == 4
    assert parse(parallel_tool_calls=False).chat.parallel_tool_calls is False
    assert parse(model="m").chat.model == "m"


def test_fields_without_effect() -> None:
    given: dict[str, Any] = {
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "service_tier": "flex",
        "text": {"verbosity": "low"},
    }
    found = parse(metadata={"a": "b"}, store=True, **given).chat
    assert set(found.ignored) == {*given, "text.verbosity"} - {"text"}
    assert msgspec.structs.replace(found, ignored=()) == parse().chat
    assert refused(metadata={"a": 1}).param == "metadata[...]"
    assert refused(metadata={str(n): "" for n in range(17)}).param == "metadata"


@pytest.mark.parametrize(
    ("name", "neutral"), [(n, v) for n, k in schema.UNSUPPORTED.items() for v in (*k.values, None)]
)
def test_neutral_values(name: str, neutral: Any) -> None:
    if name == "personality":
        request = parse_count(msgspec.json.encode({"input": "hi", name: neutral}), references())
        assert request.chat == parse().chat
        return
    field, _, inner = name.partition(".")
    assert parse(**{field: {inner: neutral} if inner else neutral}).chat == parse().chat


@pytest.mark.parametrize("name", schema.UNSUPPORTED)
def test_refused_by_name(name: str) -> None:
    field, _, inner = name.partition(".")
    error = refused(**{field: {inner: "bogus"} if inner else "bogus"})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert f"'{name}'" in error.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True, "store": False}, "store"),
        ({"background": 1}, "background"),
        ({"background_options": {"completion_window": "2h"}}, "background_options"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"what": 1}}, "reasoning.what"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": "x"}, "top_p"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ""}, "stop"),
        ({"top_logprobs": 21, "include": [schema.LOGPROBS]}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["reasoning.encrypted_content", "x"]}, "include[1]"),
        ({"include": [schema.LOGPROBS, "file_search_call"]}, "include[1]"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"tools": [{"type": "telepathy"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}, "name": "f"}]}, "tools[0].function"),
        ({"tools": [{**WEATHER, "async": True}]}, "tools[0].async"),
        ({"tools": [{**WEATHER, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"instructions": ["x"]}, "instructions"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"structured_outputs": {"what": 1}}, "structured_outputs.what"),
    ],
)
def test_refused(body: dict[str, Any], param: str) -> None:
    error = refused(**body)
    assert error.param == param
    # In the words of this API.
    for foreign in ("messages", "max_completion_tokens", "response_format", "reasoning_effort", "'logprobs'"):
        assert foreign in body or foreign not in error.message


def test_tools() -> None:
    use = tools()
    assert [tool["function"]["name"] for tool in use.offered] == ["weather", "other"]
    assert use.offered[0]["function"] == {name: WEATHER[name] for name in ("name", "description", "parameters")}
    assert (use.required, use.name, use.checked) == (False, None, False)
    strict = parse(tools=[{**WEATHER, "strict": True}]).chat.tools
    assert strict is not None
    assert strict.checked
    for body in ({"tools": [WEATHER], "tool_choice": "none"}, {"tools": [], "tool_choice": "auto"}):
        assert parse(**body).chat.tools is None
    assert parse(tool_choice="auto").chat.tools is None
    assert tools(tool_choice="required").required
    assert tools(tool_choice={"type": "function", "name": "other"}).name == "other"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    use = tools(tool_choice=allowed)
    assert [tool["function"]["name"] for tool in use.callable] == ["weather"]
    assert use.required


def test_what_has_another_form_here() -> None:
    assert parse(text={"format": {"type": "text"}}).chat == parse().chat
    assert parse(text={"format": {"type": "json_object"}}).chat.structured is not None
    structured = parse(text={"format": JSON_SCHEMA}).chat.structured
    assert structured is not None
    assert str(SCHEMA["required"]) in str(structured.format)
    prompt = parse(reasoning={"effort": "high", "summary": None}).chat.prompt
    assert prompt is not None
    assert prompt.reasoning_effort == "high"
    assert parse(include=[schema.LOGPROBS]).chat.logprobs == 0
    assert parse(include=[schema.LOGPROBS], top_logprobs=3).chat.logprobs == 3
    assert parse(include=[], top_logprobs=0).chat.logprobs is None


def test_what_is_continued() -> None:
    store = ResponseStore()
    call = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "no object"}
    response = {"id": "resp_1", "output": [call]}
    store.put(Stored(msgspec.json.encode(response), Inputs([], None)))
    body = msgspec.json.encode({"input": "hi", "previous_response_id": "resp_1"})
    prompt = parse_create(body, references(store)).chat.prompt
    assert prompt is not None
    assert prompt.messages is not None
    assert prompt.messages[0]["tool_calls"][0]["function"]["arguments"] == "no object"
    missing = refused(store, previous_response_id="resp_2")
    assert (missing.param, missing.code) == ("previous_response_id", "previous_response_not_found")


def test_an_observer_learns_of_a_stream() -> None:
    assert parse(stream=True).chat.stream
    assert not parse().chat.stream
