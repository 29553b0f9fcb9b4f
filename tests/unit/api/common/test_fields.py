from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.chat.validation import parse_json, parse_object
from openai_bls.api.common.fields import NESTED, IgnoredFields
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ValidRequest

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODY: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [CALL]},
        {"role": "tool", "content": "r", "tool_call_id": "c"},
        USER,
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

Path = tuple[str | int, ...]
PLACES: dict[Path, str] = {
    ("messages", 0): "messages[]",
    ("messages", 1): "messages[]",
    ("messages", 1, "content", 0): "messages[].content[]",
    ("messages", 2): "messages[]",
    ("messages", 2, "content", 0): "messages[].content[]",
    ("messages", 2, "tool_calls", 0): "messages[].tool_calls[]",
    ("messages", 2, "tool_calls", 0, "function"): "messages[].tool_calls[].function",
    ("messages", 3): "messages[]",
    ("tools", 0): "tools[]",
    ("tools", 0, "function"): "tools[].function",
}
"""Path of each object inside of the body, and as it is noted."""


def with_field(path: Path, name: str, value: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(BODY))
    place: Any = body
    for step in path:
        place = place[step]
    place.setdefault(name, value)
    return body


def both(body: dict[str, Any], **options: Any) -> ValidRequest:
    """The request of a body as text and as an object."""
    found = parse_json("chat.completions", json.dumps(body).encode(), **options)
    assert parse_object("chat.completions", body, **options) == found
    return found


def plain(request: ValidRequest) -> ValidRequest:
    return msgspec.structs.replace(request, ignored=())


@given(path=st.sampled_from(list(PLACES)), name=st.sampled_from(sorted(NESTED - {"id", "index"})))
def test_one_rule_for_all_objects(path: Path, name: str) -> None:
    found = both(with_field(path, name, {"type": "ephemeral"}))
    assert found.ignored == (f"{PLACES[path]}.{name}",)
    assert plain(found) == both(BODY)


@given(path=st.sampled_from(list(PLACES)), name=st.sampled_from(["tool_calls", "audio", "refusal", "anything"]))
def test_null_says_nothing(path: Path, name: str) -> None:
    assert both(with_field(path, name, None)) == both(BODY)


@given(path=st.sampled_from(list(PLACES)), name=st.from_regex(r"x_[a-z]{1,8}", fullmatch=True))
def test_unknown_fields(path: Path, name: str) -> None:
    body = with_field(path, name, 1)
    if path[:2] == ("messages", 2) and "content" not in path:
        # What some server has answered.
        assert both(body).ignored == (f"{PLACES[path]}.{name}",)
    else:
        with pytest.raises(InvalidRequestError) as caught:
            both(body)
        assert (caught.value.code, caught.value.param) == ("unknown_parameter", field_of(path, name))
    assert both(body, unknown="ignore").ignored == (f"{PLACES[path]}.{name}",)


def field_of(path: Path, name: str) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*path, name)).lstrip(".")


def test_a_body_may_have_unknown_fields_where_that_is_set() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        both({**BODY, "x": 1})
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "x")
    assert both({**BODY, "x": 1, "user": "u"}, unknown="ignore").ignored == ("x", "user")
    # What would change the answer is refused all the same.
    with pytest.raises(InvalidRequestError) as caught:
        both({**BODY, "x": 1, "suffix": "a", "lora_path": "a"}, unknown="ignore")
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "lora_path")


def test_images() -> None:
    image = {**IMAGE, "image_url": {**IMAGE["image_url"], "format": "image/png"}, "uuid": "u"}  # type: ignore[dict-item]
    found = both({"messages": [{"role": "user", "content": [image]}]})
    assert found.ignored == ("messages[].content[].image_url.format", "messages[].content[].uuid")
    assert plain(found) == both({"messages": [{"role": "user", "content": [IMAGE]}]})


@given(st.lists(st.text(max_size=100), max_size=60))
def test_names_are_bounded_and_fit_a_header(paths: list[str]) -> None:
    ignored = IgnoredFields()
    for path in paths:
        ignored.add(path)
    assert len(ignored.names) <= 32
    assert all(name.isascii() and name.isprintable() and 0 < len(name) <= 80 for name in ignored.names)
    ", ".join(ignored.names).encode("latin-1")


def test_many_occurrences_take_one_walk() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}, "uuid": "u"}]}
    found = both({"messages": [message] * 20_000})
    assert found.ignored == ("messages[].content[].uuid",)
