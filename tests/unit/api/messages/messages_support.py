"""Requests of the Messages API, and what is made of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.messages.conversion import Converted, convert, decode
from openai_bls.api.messages.errors import error_body
from openai_bls.api.messages.schema import MessagesRequest
from openai_bls.core.engine_types import PromptRequest
from openai_bls.core.errors import InvalidRequestError
from tests.unit.core_support import Answered

USER = {"role": "user", "content": "hi"}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def body(**fields: Any) -> dict[str, Any]:
    """A request body; None takes a field away."""
    whole = {"model": "tiny", "max_tokens": 50, "messages": [USER], **fields}
    return {name: value for name, value in whole.items() if value is not None}


def converted(*, thinks: bool = False, **fields: Any) -> Converted:
    """What becomes of a body."""
    ignored = IgnoredFields()
    return convert(decode(json.dumps(body(**fields)).encode(), MessagesRequest, ignored), ignored, thinks=thinks)


def prompt_of(**fields: Any) -> PromptRequest:
    """What preprocessing gets."""
    prompt = converted(**fields).valid.prompt
    assert prompt is not None
    return prompt


def field_at_fault(**fields: Any) -> str:
    """The field that a refusal names in its message, where clients of this API look for it."""
    with pytest.raises(InvalidRequestError) as caught:
        converted(**fields)
    message = error_body(caught.value)["error"]["message"]
    assert len(message) < 400
    named = re.match(r"([\w.]+): |[^':]*'([\w.]+)'", message)
    assert named is not None, message
    return named[1] or named[2]


def events_of(answered: Answered) -> list[dict[str, Any]]:
    """The events' data, each under its own name."""
    assert answered.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in answered.body.decode().removesuffix("\n\n").split("\n\n"):
        head, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert head == f"event: {found[-1]['type']}"
    return found
