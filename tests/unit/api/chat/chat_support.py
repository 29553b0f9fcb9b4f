"""Bodies of chat completions and completions, by both entrances."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openai_bls.api.chat import schema
from openai_bls.api.chat.validation import Body, parse_json, parse_object
from openai_bls.core.engine_types import SamplingParams
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


def asked_for(request: ValidRequest, field: str) -> Any:
    """What a request sets, by the name of the body's field."""
    if field in SamplingParams.__struct_fields__:
        return getattr(request.sampling, field) if field in request.sampling_given else None
    if field == "bad_words":
        return None if request.prompt is None else request.prompt.bad_words
    return getattr(request, field)


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
