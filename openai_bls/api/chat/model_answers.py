"""Answers of chat models, Triton models with the `openai_task` chat: checked, and whole ones cut into chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import msgspec

from openai_bls.api.common.encoding import encode, new_id
from openai_bls.core.errors import ApiError, ModelAnswerError
from openai_bls.core.usage import FinishReason, Usage

_ANY = msgspec.json.Decoder()

_STATUS = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "overloaded_error": 503,
    "invalid_request_error": 400,
}
"""OpenAI's type of an error → HTTP status, where the error does not say it; any other is 500."""

_FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)

# A JSON number may be larger than what a counter can hold.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    total_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class ChatModelError(ApiError):
    """An error that a chat model answered with, in its own words.

    Args:
        error: the value of its `error`.
    """

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message") or "The model answered with an error."))
        self._error = error
        self.status = _status(error)

    def body(self) -> dict[str, Any]:
        """The model's own, with OpenAI's fields."""
        return {"error": {"message": self.message, "type": self.type, "param": None, "code": None} | self._error}


def _status(error: dict[str, Any]) -> int:
    for field in ("status", "code"):
        status = error.get(field)
        # A status of success would make it an answer.
        if isinstance(status, int) and 400 <= status <= 599:
            return status
    return _STATUS.get(str(error.get("type")), 500)


def checked(model: str, text: bytes) -> dict[str, Any]:
    """A model's answer or chunk.

    Args:
        model: name of the model.
        text: text that the model sent.

    Raises:
        ChatModelError: it is an error.
        ModelAnswerError: it is neither an error nor an object with `choices`, or its usage cannot be one.
    """
    try:
        value = _ANY.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ModelAnswerError(model, "answered with something that is not JSON") from None
    if not isinstance(value, dict):
        raise ModelAnswerError(model, "answered with JSON that is no object")
    error = value.get("error")
    if error is not None:
        raise ChatModelError(error if isinstance(error, dict) else {"message": str(error)})
    if not isinstance(value.get("choices"), list):
        raise ModelAnswerError(model, "answered with an object without 'choices'")
    try:
        msgspec.convert(value.get("usage"), _Usage | None)
    except msgspec.ValidationError as error:
        raise ModelAnswerError(model, f"answered with a 'usage' that cannot be one: {error}") from None
    return value


def usage(answer: dict[str, Any]) -> Usage | None:
    """The usage of an answer or a chunk that is `checked`; None if it has none."""
    given = msgspec.convert(answer.get("usage"), _Usage | None)
    if given is None:
        return None
    prompt, completion = given.prompt_tokens_details, given.completion_tokens_details
    return Usage.of(
        given.prompt_tokens or 0,
        given.completion_tokens or 0,
        cached=(prompt.cached_tokens or 0) if prompt is not None else 0,
        reasoning=(completion.reasoning_tokens or 0) if completion is not None else 0,
    )


def finish_reasons(answer: dict[str, Any]) -> Iterator[FinishReason]:
    """Finish reasons of the choices of an answer or a chunk, those that the metrics count."""
    for choice in answer["choices"]:
        if isinstance(choice, dict):
            yield from (reason for reason in _FINISH_REASONS if reason == choice.get("finish_reason"))


def chunks(model: str, answer: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """The chunks of a stream that says what a whole answer says, whatever further fields it has.

    Args:
        model: name of the model.
        answer: whole answer of the model.
        include_usage: whether the last chunk carries the usage.

    Raises:
        ModelAnswerError: a choice has no message.
    """
    head = {
        "id": new_id("chatcmpl-"),
        "created": int(time.time()),
        "model": model,
        **{name: value for name, value in answer.items() if name not in ("choices", "usage")},
        "object": "chat.completion.chunk",
        **({"usage": None} if include_usage else {}),
    }
    for at, choice in enumerate(answer["choices"]):
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            raise ModelAnswerError(model, "answered with a choice without 'message'")
        yield from (encode({**head, "choices": [part]}) for part in _parts(at, choice, dict(message)))
    if include_usage:
        yield encode({**head, "choices": [], "usage": answer.get("usage")})


def _parts(at: int, choice: dict[str, Any], message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A choice of a whole answer as choices of chunks: role, message, finish reason."""
    index = choice.get("index", at)
    role = {"role": message.pop("role", "assistant"), "content": ""}
    yield {"index": index, "delta": role, "logprobs": None, "finish_reason": None}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [{"index": i, **c} if isinstance(c, dict) else c for i, c in enumerate(calls)]
    delta = {name: value for name, value in message.items() if value is not None}
    if delta:
        yield {"index": index, "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}
    further = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
    yield {**further, "index": index, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason")}
