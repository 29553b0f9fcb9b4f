"""Bodies of /v1/messages and /v1/messages/count_tokens, field by field.

As in `chat.schema`, a field is honoured, without effect (`WithoutEffect`), unsupported (`UNSUPPORTED`) or unknown.
Content blocks and tools are decoded by `conversion`, which can tell by their `type` what is refused.

Source: Anthropic's API reference, version 2023-06-01, with the later additions that its Python SDK 2.12 knows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.chat.messages import FunctionName
from openai_bls.api.common.documented import PER_TOKEN, documented
from openai_bls.api.common.unsupported import Unsupported
from openai_bls.api.messages.context_schema import ContextManagement
from openai_bls.core.request import Timeout

Name = Annotated[str, Meta(min_length=1)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


# --- content blocks ---


class Block(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of every content block."""

    cache_control: Any = None
    """No effect: prefix caching is automatic here."""


class TextBlock(Block, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    citations: Annotated[list[Any] | None, documented(Annotated[list[Any], Meta(max_length=0)] | None)] = None
    """Refused unless empty."""


class Base64Source(msgspec.Struct, tag_field="type", tag="base64", forbid_unknown_fields=True):
    """An image in the body."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str
    """Base64."""


class UrlSource(msgspec.Struct, tag_field="type", tag="url", forbid_unknown_fields=True):
    """An image elsewhere."""

    url: str
    """An http or https URL of a host that the setting `image_url_hosts` allows."""


class FileSource(msgspec.Struct, tag_field="type", tag="file", forbid_unknown_fields=True):
    """An uploaded image."""

    file_id: str
    """A file of /v1/files with the purpose `vision` or `user_data`."""


class ImageBlock(Block, kw_only=True, tag_field="type", tag="image"):
    """An image, for a model that takes some."""

    source: Base64Source | UrlSource | FileSource


class ToolUseBlock(Block, kw_only=True, tag_field="type", tag="tool_use"):
    """An earlier tool call, fed back."""

    id: Name
    name: Name
    input: dict[str, Any]
    caller: Any = None
    """Refused unless it is the model itself."""
    toolset_name: None = None


class ToolResultBlock(Block, kw_only=True, tag_field="type", tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: Name
    content: Annotated[str | list[dict[str, Any]] | None, documented(str | list[TextBlock | ImageBlock] | None)] = None
    is_error: bool | None = None
    toolset_name: None = None


class ThinkingBlock(Block, kw_only=True, tag_field="type", tag="thinking"):
    """Earlier reasoning, fed back."""

    thinking: str
    signature: str = ""
    """No effect: thoughts are not signed here."""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One turn, or a part of one: turns of the same role that follow each other are one."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        str | list[dict[str, Any]],
        documented(str | list[TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock], per_token=True),
    ]


# --- tools ---


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool of the client's own."""

    name: Annotated[str, documented(FunctionName)]
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    cache_control: Any = None
    """No effect: prefix caching is automatic here."""
    eager_input_streaming: bool | None = None
    """No effect: arguments are streamed as they are written."""
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    input_examples: Annotated[list[Any], Meta(max_length=0)] | None = None


class AutoToolChoice(msgspec.Struct, tag_field="type", tag="auto", forbid_unknown_fields=True):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyToolChoice(msgspec.Struct, tag_field="type", tag="any", forbid_unknown_fields=True):
    """Some tool must be called."""

    disable_parallel_tool_use: bool | None = None


class NamedToolChoice(msgspec.Struct, tag_field="type", tag="tool", forbid_unknown_fields=True):
    """This tool must be called."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoToolChoice(msgspec.Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    """No tool may be called."""


ToolChoice = AutoToolChoice | AnyToolChoice | NamedToolChoice | NoToolChoice


# --- thinking and output ---

Display = Literal["summarized", "omitted"]


class ThinkingEnabled(msgspec.Struct, tag_field="type", tag="enabled", forbid_unknown_fields=True):
    """Thinking before the answer."""

    budget_tokens: Annotated[int, Meta(ge=1024, le=2**31 - 1)]
    """A target for chat templates that take one; nothing enforces it."""
    display: Display | None = None


class ThinkingAdaptive(msgspec.Struct, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    """The model may think first."""

    display: Display | None = None


class ThinkingDisabled(msgspec.Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """The answer is to come without thinking."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class JsonFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """The answer must fit a JSON schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


# --- requests ---


class WithoutEffect(msgspec.Struct, kw_only=True):
    """Taken without effect: none of these can change the answer."""

    billing_policy: Any = None
    cache_control: Any = None
    fallback_credit_token: Any = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class PromptRequest(WithoutEffect, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/messages/count_tokens, and what /v1/messages shares with it."""

    model: Name
    """A served name."""
    messages: Annotated[list[Message], Meta(min_length=1, max_length=100_000), PER_TOKEN]
    """Blocks text, image (of users and in tool_result), tool_use, tool_result (also `is_error`), thinking; a last
    assistant turn is continued. Documents, search results, redacted thinking and the blocks of server tools are
    refused."""
    system: Annotated[str | list[dict[str, Any]] | None, documented(str | list[TextBlock] | None, per_token=True)] = (
        None
    )
    """A string or text blocks."""
    tools: Annotated[list[dict[str, Any]] | None, documented(list[Tool] | None, per_token=True)] = None
    """Custom tools. Server tools are refused by name."""
    tool_choice: ToolChoice | None = None
    """Auto, any, tool, none; `disable_parallel_tool_use`."""
    thinking: Thinking | None = None
    """Reasoning of a model that has it: enabled and adaptive turn it on through the chat template, disabled off,
    `display: "omitted"` leaves the text out. The budget is told to the template; it cuts nothing."""
    output_config: OutputConfig | None = None
    """`format` json_schema, and `effort` where the template knows it (`"medium"` and `"high"` always)."""
    output_format: JsonFormat | None = None
    """The older place of `output_config.format`."""
    context_management: ContextManagement | None = None
    """`clear_thinking_20251015` and `clear_tool_uses_20250919`; what they cleared is told in the answer."""
    # unsupported: see UNSUPPORTED
    mcp_servers: Any = UNSET
    speed: Any = UNSET
    compaction: Any = UNSET
    fallbacks: Any = UNSET
    thread: Any = UNSET


class WithoutEffectInGeneration(PromptRequest, kw_only=True):
    """Taken without effect by /v1/messages, unknown to /v1/messages/count_tokens."""

    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class MessagesRequest(WithoutEffectInGeneration, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/messages."""

    max_tokens: Count
    """Most new tokens. 0 reads the prompt, so that it is cached, and writes nothing."""
    stop_sequences: list[str] | None = None
    """Up to 16 strings."""
    stream: bool | None = None
    """Server-sent events instead of one message."""
    temperature: Fraction | None = None
    """Sampling temperature; without it the checkpoint's default counts."""
    top_p: Fraction | None = None
    top_k: Count | None = None
    # ours
    timeout: Timeout | None = None
    """Seconds from the request's arrival in which it must be answered."""
    # unsupported: see UNSUPPORTED
    container: Any = UNSET
    diagnostics: Any = UNSET
    inference_geo: Any = UNSET


UNSUPPORTED: dict[str, Unsupported] = {
    "mcp_servers": Unsupported(([],), "the server calls no tools by itself; call them where the answer asks for it"),
    "speed": Unsupported(("standard",), "there is one speed"),
    "container": Unsupported((), "there are no containers here"),
    "diagnostics": Unsupported(({}, {"previous_message_id": None}), "nothing is kept of earlier requests"),
    "inference_geo": Unsupported(("global",), "the server stands in one place"),
    "compaction": Unsupported((), "compact with /v1/responses/compact, or ask for a summary"),
    "fallbacks": Unsupported(("default", []), "the model that is named answers, and no other"),
    "thread": Unsupported((), "send the messages; conversations are kept by /v1/responses"),
}
"""Field name → the values at which it may be given; null always may."""

REFUSED_BLOCKS: dict[str, str] = {
    "document": "the served models take text and images; give a document's text as a text block",
    "search_result": "give what was found as a text block",
    "redacted_thinking": "its content is known only to the server that wrote it; leave it out",
    "container_upload": "there are no containers here",
    "tool_reference": "there is no tool search here",
}
"""Type of a content block → why it is refused."""
SERVER_BLOCKS = "the tools of Anthropic's servers, and what they bring, do not exist here"
"""Reason for refusing every other block of the API."""
