from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_bls.api.chat.validation import parse_object
from openai_bls.api.common.bodies import convert
from openai_bls.api.http.forms import struct_of_json
from openai_bls.api.lora.endpoints import LoadBody, UnloadBody
from openai_bls.api.registry import TRITON_ENTRIES
from openai_bls.api.tasks.classify.schema import parse_classify
from openai_bls.api.tasks.embeddings.schema import parse_embeddings
from openai_bls.api.tasks.moderations.schema import parse_moderations
from openai_bls.api.tasks.rerank.schema import parse_rerank, parse_score
from openai_bls.api.tasks.speech.schema import parse_speech
from openai_bls.api.tasks.transcription.schema import TranscriptionBody, TranslationBody
from openai_bls.api.tokenize.schema import DetokenizeBody, parse_tokenize
from openai_bls.core.errors import InvalidRequestError
from openai_bls.triton_models.openai_bls.generate_extension import assemble
from openai_bls.triton_models.tensors.models import MODELS

USER = {"role": "user", "content": "hi"}


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def refused(tensors: dict[str, list[bytes]], parameters: dict[str, Any] | None = None) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as info:
        assemble(tensors, parameters or {})
    return info.value


OTHER = {"role": "assistant", "content": "ho"}


@pytest.mark.parametrize(
    ("tensors", "endpoint", "body"),
    [
        ({"request": [text({"messages": [USER], "n": 2})]}, "chat.completions", {"messages": [USER], "n": 2}),
        ({"request": [text({"prompt": "x"})]}, "completions", {"prompt": "x"}),
        # Messages come as one element or one per message.
        ({"messages": [text([USER, OTHER])]}, "chat.completions", {"messages": [USER, OTHER]}),
        ({"messages": [text(USER), text(OTHER)]}, "chat.completions", {"messages": [USER, OTHER]}),
        ({"messages": [text(USER)]}, "chat.completions", {"messages": [USER]}),
        ({"messages": [text([USER])]}, "chat.completions", {"messages": [USER]}),
        ({"prompt": [b"a"]}, "completions", {"prompt": "a"}),
        ({"prompt": [b"a", b"b"]}, "completions", {"prompt": ["a", "b"]}),
        ({"prompt": [b"1"], "stop": [b"[x]"]}, "completions", {"prompt": "1", "stop": "[x]"}),
        ({"prompt": [b"x"], "bad_words": [b"a"]}, "completions", {"prompt": "x", "bad_words": ["a"]}),
        ({"prompt": [b"x"], "bad_words": [b"a", b"b c"]}, "completions", {"prompt": "x", "bad_words": ["a", "b c"]}),
    ],
)
def test_tensors_make_a_body(tensors: dict[str, list[bytes]], endpoint: str, body: dict[str, Any]) -> None:
    assert assemble(tensors, {}) == (endpoint, body)
    # Triton's own parameters are left out.
    own: dict[str, Any] = {"id": "7", "triton_enable_empty_final_response": True, "binary_data_output": False}
    own |= {"api_key": "k", "Authorization": "Bearer k"}
    assert assemble(tensors, {**own, "seed": 1}) == (endpoint, {**body, "seed": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("structured_outputs", {"regex": "a+"}),
        ("guided_json", {"type": "object"}),
        ("guided_choice", ["a", "b"]),
        ("stop_token_ids", [1, 2]),
        ("input", "text"),
        ("input", ["a", "b"]),
        ("input", [[1], [2, 3]]),
        ("tokens", [1, 2]),
        ("reasoning", {"effort": "low"}),
    ],
)
def test_what_is_no_scalar_comes_as_json_text(name: str, value: Any) -> None:
    assert assemble({"prompt": [b"x"], name: [text(value)]}, {})[1][name] == value
    # Not an element an item: a string would be taken for JSON, or the other way round.
    assert refused({"prompt": [b"x"], name: [text(value), text(value)]}).param == name


def test_tool_choice_may_be_plain_or_json_text() -> None:
    for given_text, value in ((b"none", "none"), (b'"none"', "none"), (b' {"type": "function"}', {"type": "function"})):
        assert assemble({"messages": [text(USER)], "tool_choice": [given_text]}, {})[1]["tool_choice"] == value


def test_the_endpoint_is_named_or_plain_from_the_fields() -> None:
    both = {"request": [text({"messages": [USER], "prompt": "x"})]}
    assert refused(both).param == "prompt"
    assert assemble({**both, "endpoint": [b"completions"]}, {})[0] == "completions"
    error = refused({"endpoint": [b"responses"], "prompt": [b"x"]})
    assert error.param == "endpoint"
    assert "chat.completions" in error.message
    assert "embeddings" in error.message
    error = refused({})
    assert (error.param, error.code) == ("messages", "missing_required_parameter")


@pytest.mark.parametrize(
    ("endpoint", "field", "value"),
    [("tokenize", "messages", [USER]), ("detokenize", "tokens", [1]), ("embeddings", "input", "x")],
)
def test_the_small_endpoints_are_named(endpoint: str, field: str, value: Any) -> None:
    fields = {field: [text(value)]}
    assert assemble({**fields, "endpoint": [endpoint.encode()]}, {"model": "m"}) == (
        endpoint,
        {field: value, "model": "m"},
    )
    if field != "messages":
        # Nothing is guessed from their fields.
        error = refused(fields)
        assert error.code == "missing_required_parameter"
        assert "'endpoint'" in error.message
    # A parameter, or a field of the whole request, is no endpoint.
    assert assemble({"prompt": [b"x"]}, {"endpoint": endpoint}) == (
        "completions",
        {"prompt": "x", "endpoint": endpoint},
    )


def test_a_field_given_twice_is_refused() -> None:
    request = [text({"messages": [USER], "n": 1})]
    assert refused({"request": request}, {"n": 1}).param == "n"
    assert refused({"request": request, "messages": [text(USER)]}).param == "messages"


@pytest.mark.parametrize(
    ("tensors", "param"),
    [
        ({"request": [b"{"]}, "request"),
        ({"request": [b"[]"]}, "request"),
        ({"request": [b'"x"']}, "request"),
        ({"request": []}, "request"),
        ({"request": [b"{}", b"{}"]}, "request"),
        ({"request": [b"[" * 50_000]}, "request"),
        ({"request": [b"\xff"]}, "request"),
        ({"messages": [b"hi"]}, "messages"),
        ({"messages": [text(USER), b"{"]}, "messages"),
        ({"prompt": [b"\xff"]}, "prompt"),
        ({"prompt": [b"x"], "stop": [b"\xff"]}, "stop"),
        ({"messages": [text(USER)], "tool_choice": [b"\xff"]}, "tool_choice"),
        ({"messages": [text(USER)], "metadata": [b"{}", b"{}"]}, "metadata"),
        ({"messages": [text(USER)], "metadata": [b"x"]}, "metadata"),
        ({"prompt": [b"x"], "endpoint": []}, "endpoint"),
        ({"prompt": [b"x"], "endpoint": [b"\xff"]}, "endpoint"),
    ],
)
def test_bad_tensors_are_refused_by_name(tensors: dict[str, list[bytes]], param: str) -> None:
    assert refused(tensors).param == param


NAMES = [tensor.name for tensor in MODELS["openai_bls"].inputs]
PIECES = st.binary(max_size=12) | st.sampled_from(
    [text(USER), text([USER]), b"{}", b"[]", b"[1]", b'"x"', b"auto", b"null", b"1"]
    + [name.encode() for name in TRITON_ENTRIES]
)
PARSERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat.completions": functools.partial(parse_object, "chat.completions"),
    "completions": functools.partial(parse_object, "completions"),
    "tokenize": parse_tokenize,
    "detokenize": functools.partial(convert, schema=DetokenizeBody),
    "embeddings": parse_embeddings,
    "rerank": parse_rerank,
    "score": parse_score,
    "moderations": parse_moderations,
    "classify": parse_classify,
    "audio.speech": parse_speech,
    "audio.transcriptions": lambda body: struct_of_json(body, TranscriptionBody, "refuse"),
    "audio.translations": lambda body: struct_of_json(body, TranslationBody, "refuse"),
    "load_lora_adapter": functools.partial(convert, schema=LoadBody),
    "unload_lora_adapter": functools.partial(convert, schema=UnloadBody),
}
PARAMETERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    st.dictionaries(st.sampled_from(NAMES), st.lists(PIECES, max_size=3), max_size=4),
    st.dictionaries(
        st.sampled_from(["n", "stream", "temperature", "seed", "id", "stop", "what"]), PARAMETERS, max_size=3
    ),
)
@settings(deadline=None, max_examples=100)
def test_any_tensors_are_a_request_or_a_400(tensors: dict[str, list[bytes]], parameters: dict[str, Any]) -> None:
    try:
        endpoint, body = assemble(tensors, parameters)
        assert PARSERS[endpoint](body)
    except InvalidRequestError as error:
        text(error.body())
