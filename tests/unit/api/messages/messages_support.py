"""Requests of the Messages API, and what is made of them."""

from __future__ import annotations

import json
from typing import Any

from openai_bls.api.messages.conversion import Converted, convert, decode
from openai_bls.api.messages.schema import MessagesRequest

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
    return convert(decode(json.dumps(body(**fields)).encode(), MessagesRequest), thinks=thinks)
