"""What /v1/messages answers: the events of a stream, and the message that they add up to."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from openai_bls.api.common.encoding import encode
from openai_bls.core.usage import Usage as ChatUsage

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """What the new tokens were."""

    thinking_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts. The three kinds of input tokens exclude each other; their sum is the prompt's length."""

    input_tokens: int
    cache_creation_input_tokens: int
    """Always 0: what is written to the cache costs nothing extra here."""
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails

    @classmethod
    def of(cls, prompt: int, cached: int, output: int, thinking: int) -> Usage:
        """The counts; `cached` of the `prompt` tokens were read from the cache, `thinking` of the new ones thoughts."""
        return cls(prompt - cached, 0, cached, output, OutputTokensDetails(thinking))

    @classmethod
    def of_chat(cls, usage: ChatUsage) -> Usage:
        """The same counts as chat completions tell."""
        return cls.of(
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            usage.completion_tokens,
            usage.completion_tokens_details.reasoning_tokens,
        )


# --- content blocks ---


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """Text for the user."""

    text: str


class Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thinks."""

    thinking: str
    signature: str = ""
    """Always empty: nothing needs to be proved when the block is fed back."""


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: dict[str, Any] | msgspec.Raw


ContentBlock = Text | Thinking | ToolUse


class Message(msgspec.Struct, tag_field="type", tag="message"):
    """A whole answer, or at the start of a stream one without content."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage


# --- deltas ---


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of what the model thinks."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The end of thinking."""

    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a tool call's input, as JSON text exactly as the model wrote it."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class Stop(msgspec.Struct, frozen=True):
    """Why the answer ends."""

    stop_reason: StopReason
    stop_sequence: str | None


# --- events ---


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: Message


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing has happened; clients must be ready for it anywhere."""


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A content block begins, empty."""

    index: int
    content_block: ContentBlock


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """More of the block that has begun last."""

    index: int
    delta: Delta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The block is complete."""

    index: int


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """How the answer ended."""

    delta: Stop
    usage: Usage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


_HEADS = {kind: f"event: {kind.__struct_config__.tag}\ndata: ".encode() for kind in get_args(Event)}


def encode_event(event: Event) -> bytes:
    """A server-sent event under its own name."""
    return _HEADS[type(event)] + encode(event) + b"\n\n"
