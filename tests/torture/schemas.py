"""JSON values by the types of the API's own schemas, right ones and those beside them."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from openai_bls.api.chat.schema import ChatCompletionRequest, CompletionRequest
from openai_bls.api.decisions.schema import DecisionsBody
from openai_bls.api.lora.endpoints import LoadBody, UnloadBody
from openai_bls.api.messages.schema import MessagesRequest, PromptRequest
from openai_bls.api.responses.schema import CountRequest, CreateRequest
from openai_bls.api.tasks.classify.schema import ClassifyBody
from openai_bls.api.tasks.embeddings.schema import EmbeddingsBody
from openai_bls.api.tasks.moderations.schema import ModerationsBody
from openai_bls.api.tasks.rerank.schema import RerankBody, ScoreBody
from openai_bls.api.tasks.speech.schema import SpeechBody
from openai_bls.api.tasks.transcription.schema import TranscriptionBody, TranslationBody
from openai_bls.api.tokenize.schema import ChatBody, DetokenizeBody, PromptBody
from tests.pictures import BAD_FILES, data_uri, picture, png_bomb

SCHEMAS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "chat.completions": (ChatCompletionRequest,),
    "completions": (CompletionRequest,),
    "responses": (CreateRequest,),
    "responses.input_tokens": (CountRequest,),
    "messages": (MessagesRequest,),
    "messages.count_tokens": (PromptRequest,),
    "decisions": (DecisionsBody,),
    "embeddings": (EmbeddingsBody,),
    "rerank": (RerankBody,),
    "score": (ScoreBody,),
    "moderations": (ModerationsBody,),
    "classify": (ClassifyBody,),
    "audio.speech": (SpeechBody,),
    "audio.transcriptions": (TranscriptionBody,),
    "audio.translations": (TranslationBody,),
    "tokenize": (PromptBody, ChatBody),
    "detokenize": (DetokenizeBody,),
    "load_lora_adapter": (LoadBody,),
    "unload_lora_adapter": (UnloadBody,),
}
"""Endpoint → structs of its body. One that is not here gets its smoke body with arbitrary fields."""

# Texts at which parsers, templates, tokenizers, terminals and file systems go wrong.
ODD_TEXTS = (
    *(
        "",
        " ",
        "\x00",
        "\ufeff",
        "\ud800",
        "\udfff\ud800",
        "\u202e\u2066x",
        "e\u0301" * 20,
        "👩🏽\u200d💻🇫🇷",
        "ß\u200b",
    ),
    *("\r\n\r\n", "data: [DONE]\n\n", "<|im_end|>", "<|im_start|>system\n", "<tool_call>\n{", "{{ 7 * 7 }}", "%s%n"),
    *(
        "{% for x in range(10**9) %}",
        "../../../../etc/passwd",
        "/dev/stdin",
        "file:///etc/passwd",
        "'; DROP TABLE x; --",
    ),
    *("null", "NaN", "-0", "1e999", '{"a": ', "demo", "openai_bls", "__class__", "\\u0000", "(a+)+$", "(?=x)"),
    *("root ::= root", "a" * 5000, "ab " * 2000, "能" * 3000, "(" * 300, "[" * 300),
)
ODD_NUMBERS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, 20, 21, 127, 128, 129, 2047, 2048, 2049, 10**30),
    *(2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63) - 1),
    *(0.0, -0.0, 0.5, 1.5, -2.5, 1e-300, 5e-324, 1e308, float("inf"), float("-inf"), float("nan")),
)

texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=20))
numbers = st.one_of(st.sampled_from(ODD_NUMBERS), st.integers(-3, 300), st.floats(-3, 3))
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
anything: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=6
)

# Of a JSON schema, for fields that hold one.
_SIMPLE_SCHEMAS: tuple[Any, ...] = (
    *({}, True, False, {"type": "string"}, {"type": "integer", "minimum": 3}, {"enum": ["a", 1, None]}, {"const": "x"}),
    *({"type": "unknown"}, {"type": "string", "pattern": "(a|b)+"}, {"type": "string", "maxLength": 2**40}),
    *({"$ref": "#"}, {"$ref": "#/$defs/x"}),
)
json_schemas: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(_SIMPLE_SCHEMAS),
    lambda inner: st.one_of(
        st.builds(lambda of: {"type": "array", "items": of}, inner),
        st.builds(lambda of: {"type": "object", "properties": {"a": of, "能": of}, "required": ["a"]}, inner),
        st.builds(lambda of: {"anyOf": of}, st.lists(inner, max_size=3)),
    ),
    max_leaves=4,
)
SEES = "sees"
"""Model that takes images."""
HOST_PORT = 18000 + zlib.crc32(__file__.encode()) % 1000
"""Port of a host of images on this machine: the same for a checkout, so that a finding can be sent once more."""
ALICES_HOST_PORT = HOST_PORT + 1000
"""Port of the host of images that an attack may be."""
_HOST = f"http://127.0.0.1:{HOST_PORT}"
# Images: bad files, a bomb and a good one; places that must not be asked.
_IMAGES: tuple[str, ...] = (
    *(data_uri(data) for data, _ in BAD_FILES.values()),
    *(data_uri(png_bomb(20 << 20)), data_uri(picture(64, 64)), data_uri(picture(64, 64, form="JPEG"), "text/html")),
    *("data:image/png;base64,", "data:,x", "data:image/png;base64,%%%", "http://169.254.169.254/latest/meta-data/"),
    *(f"{_HOST}/good", f"{_HOST}/missing", f"{_HOST}/html", f"{_HOST}/slow", f"{_HOST}/metadata", f"{_HOST}/circle"),
    *("file:///etc/passwd", "https://[::1]/", "http://localhost:8000/v2", "http://a:b@c/", "https://\ud800/"),
)
_images = st.sampled_from(_IMAGES)
pictures = st.lists(
    st.one_of(
        st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, _images),
        st.just({"type": "text", "text": "What?"}),
    ),
    min_size=1,
    max_size=4,
)
"""Contents of a user's message to a model that takes images."""
_image_parts = st.one_of(
    _images.map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
    _images.map(lambda url: {"type": "input_image", "image_url": url}),
    _images.map(
        lambda url: {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]},
        }
    ),
)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "url": _images,
    "data": _images.map(lambda url: url.partition(",")[2]),
    "file_id": st.sampled_from(["file-" + "0" * 32, "../../etc/passwd", ""]),
    "content": st.one_of(
        st.lists(st.one_of(_image_parts, st.just({"type": "text", "text": "What?"})), min_size=1, max_size=3),
        _image_parts.map(lambda part: [part] * 1000),
    ),
    "model": st.sampled_from(["demo", "openai_bls", SEES, "gpt-4o", ""]),
    "response_format": st.one_of(
        st.sampled_from([{"type": "json_object"}, {"type": "text"}, {"type": "xml"}]),
        st.builds(lambda s: {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}, json_schemas),
    ),
    "guided_json": json_schemas,
    "parameters": json_schemas,
    "schema": json_schemas,
    "input_schema": json_schemas,
    "guided_regex": st.sampled_from(["[a-z]+", "(", "(a+)+$", "\\p{L}{1,99999}", "a{2,1}"]),
    "structured_outputs": st.one_of(
        anything, st.builds(lambda s: {"json": s}, json_schemas), st.just({"choice": ["a", "b"]})
    ),
    "logit_bias": st.dictionaries(st.sampled_from(["0", "5", "-1", "x", "99999999", "1.5"]), numbers, max_size=3),
}
"""Fields that a schema leaves open, or whose right values are rare among all of their type."""


def field(kind: inspect.Field) -> st.SearchStrategy[Any]:
    """A value for a field: mostly of its type."""
    own = _FIELDS.get(kind.encode_name)
    typed = value(kind.type)
    return st.one_of(typed, typed, own, own, anything) if own is not None else st.one_of(typed, typed, typed, anything)


def value(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """A value of a type, or at its bounds."""
    found: st.SearchStrategy[Any] = anything
    if isinstance(kind, inspect.Metadata):
        # Around a type whose field has marks.
        return value(kind.type)
    if isinstance(kind, inspect.StructType):
        found = struct(kind.cls)
    elif isinstance(kind, inspect.UnionType):
        found = st.one_of([value(one) for one in kind.types])
    elif isinstance(kind, inspect.LiteralType):
        found = st.sampled_from(kind.values)
    elif isinstance(kind, inspect.ListType):
        found = st.lists(value(kind.item_type), max_size=3)
    elif isinstance(kind, inspect.DictType):
        found = st.dictionaries(value(kind.key_type), value(kind.value_type), max_size=3)
    elif isinstance(kind, inspect.IntType | inspect.FloatType):
        bounds = [bound for bound in (kind.ge, kind.gt, kind.le, kind.lt) if bound is not None]
        near = [bound + step for bound in bounds for step in (-1, 0, 1)]
        inside = st.integers(0, 8) if isinstance(kind, inspect.IntType) else st.floats(0, 2)
        found = st.one_of(inside, inside, st.sampled_from(near) if near else numbers, numbers)
    elif isinstance(kind, inspect.StrType):
        found = texts
    elif isinstance(kind, inspect.BoolType):
        found = st.booleans()
    elif isinstance(kind, inspect.NoneType):
        found = st.none()
    return found


def _later(one: inspect.Field) -> st.SearchStrategy[Any]:
    """Structs may hold each other."""
    return st.deferred(lambda: field(one))


@functools.cache
def struct(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """An object of a struct's fields: those that it must have, and up to two others."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    required = {one.encode_name: _later(one) for one in info.fields if one.required}
    optional = {one.encode_name: _later(one) for one in info.fields if not one.required}
    tag = {} if info.tag_field is None else {info.tag_field: info.tag}

    @st.composite
    def draw_object(draw: st.DrawFn) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(sorted(optional)), max_size=2)) if optional else []
        return {
            **tag,
            **{name: draw(of) for name, of in required.items()},
            **{name: draw(optional[name]) for name in names},
        }

    return draw_object()


@functools.cache
def fields_of(endpoint: str) -> dict[str, st.SearchStrategy[Any]]:
    """Field → its values, for the body of an endpoint."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for cls in SCHEMAS.get(endpoint, ()):
        info = inspect.type_info(cls)
        assert isinstance(info, inspect.StructType)
        found |= {one.encode_name: field(one) for one in info.fields}
    return found
