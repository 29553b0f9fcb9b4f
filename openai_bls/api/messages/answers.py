"""Answers of the Messages API, for the description of the API: `writers` makes them as objects."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    """Text of the model."""

    text: str


class ThinkingContent(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning of the model."""

    thinking: str
    signature: str
    """Always empty."""


class ToolUseContent(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class ThinkingTokens(msgspec.Struct):
    """Output tokens by kind."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """Token counts; the three kinds of input tokens exclude each other."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class AppliedEdit(msgspec.Struct, omit_defaults=True):
    """An edit that cleared something."""

    type: Literal["clear_thinking_20251015", "clear_tool_uses_20250919"]
    cleared_input_tokens: int
    cleared_thinking_turns: int = 0
    cleared_tool_uses: int = 0


class AppliedEdits(msgspec.Struct):
    """Edits of `context_management` that were applied."""

    applied_edits: list[AppliedEdit]


class OriginalTokens(msgspec.Struct):
    """The prompt before the edits of `context_management`."""

    original_input_tokens: int


class MessageAnswer(msgspec.Struct):
    """A message of the model."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"] | None
    stop_sequence: str | None
    usage: MessageUsage
    context_management: AppliedEdits | msgspec.UnsetType = msgspec.UNSET
    """Only if the request has this field."""


class MessageEvent(msgspec.Struct):
    """An event of a stream, with the fields that Anthropic's reference names for its type."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]


class TokenCount(msgspec.Struct):
    """Number of a prompt's tokens."""

    input_tokens: int
    context_management: OriginalTokens | msgspec.UnsetType = msgspec.UNSET
    """Only if the request has this field."""


class ErrorText(msgspec.Struct):
    """An error; its message names the field at fault."""

    type: str
    message: str


class ErrorAnswer(msgspec.Struct):
    """The body of an error."""

    type: Literal["error"]
    error: ErrorText
    request_id: str
