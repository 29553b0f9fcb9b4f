"""Bodies of /v1/messages and /v1/messages/count_tokens, field by field.

As in `chat.schema`, a field is honoured, without effect (`WithoutEffect`), unsupported (`UNSUPPORTED`) or unknown.
Content blocks and tools are decoded by `conversion`, which can tell by their `type` what is refused.

Source: Anthropic's API reference, version 2023-06-01, with the later additions that its Python SDK 2.12 knows.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

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
    citations: list[Any] | None = None
    """No effect: they are no part of the text."""


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


class TextSource(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A document's text."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentSource(msgspec.Struct, tag_field="type", tag="content", forbid_unknown_fields=True):
    """A document as blocks."""

    content: Annotated[str | list[dict[str, Any]], documented(str | list[TextBlock | ImageBlock])]


class Citations(msgspec.Struct, forbid_unknown_fields=True):
    """Whether an answer is to cite its source."""

    enabled: bool | None = None
    """Refused if true."""


class DocumentBlock(Block, kw_only=True, tag_field="type", tag="document"):
    """A document as text; no PDF."""

    source: TextSource | ContentSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(Block, kw_only=True, tag_field="type", tag="search_result"):
    """A search result, which becomes text."""

    source: str
    title: str
    content: Annotated[list[dict[str, Any]], documented(list[TextBlock])]
    citations: Citations | None = None


class ToolReferenceBlock(Block, kw_only=True, tag_field="type", tag="tool_reference"):
    """A tool that a search has found; all tools are offered, and it becomes text."""

    tool_name: Name


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
    content: Annotated[
        str | list[dict[str, Any]] | None,
        documented(str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock] | None),
    ] = None
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
        documented(
            str
            | list[
                TextBlock
                | ImageBlock
                | DocumentBlock
                | SearchResultBlock
                | ToolUseBlock
                | ToolResultBlock
                | ThinkingBlock
            ],
            per_token=True,
        ),
    ]
    clear_at: Literal["next_user_message", "never"] | None = None
    """End of a system message's time: the model sees it until the next user message, or always."""


# --- tools ---


class ToolOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of every tool that the client runs."""

    name: Annotated[str, documented(FunctionName)]
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    """A tool that the model may not call directly is left out."""
    input_examples: list[dict[str, Any]] | None = None
    """Examples that the description tells the model."""
    cache_control: Any = None
    """No effect: prefix caching is automatic here."""
    eager_input_streaming: bool | None = None
    """No effect: arguments are streamed as they are written."""
    defer_loading: bool | None = None
    """No effect: the tool is offered at once."""


class Tool(ToolOptions, kw_only=True, forbid_unknown_fields=True):
    """A tool of the client's own."""

    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None


class AnthropicTool(ToolOptions, kw_only=True, forbid_unknown_fields=True):
    """A tool of Anthropic's that the client runs; its schema is known."""

    type: str
    max_characters: int | None = None
    """Limit of a text editor's view, which the client keeps."""


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


class ThinkingBetweenTools(msgspec.Struct, tag_field="type", tag="between_tools", forbid_unknown_fields=True):
    """The model may think first, as with `adaptive`."""

    display: Display | None = None


class ThinkingDisabled(msgspec.Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """The answer is to come without thinking."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled


class JsonFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """The answer must fit a JSON schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the answer."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"task_budget"})

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


# --- requests ---


class WithoutEffect(msgspec.Struct, kw_only=True):
    """Taken without effect: none of these can change the answer."""

    billing_policy: Any = None
    cache_control: Any = None
    fallback_credit_token: Any = None
    speed: Literal["standard", "fast"] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class PromptRequest(WithoutEffect, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/messages/count_tokens, and what /v1/messages shares with it."""

    model: Name
    """A served name."""
    messages: Annotated[list[Message], Meta(min_length=1, max_length=100_000), PER_TOKEN]
    """Blocks text, image, document with text, search_result, tool_use, tool_result, thinking; a last assistant turn is
    continued. Blocks of server tools are left out; PDFs are refused."""
    system: Annotated[str | list[dict[str, Any]] | None, documented(str | list[TextBlock] | None, per_token=True)] = (
        None
    )
    """A string or text blocks."""
    tools: Annotated[list[dict[str, Any]] | None, documented(list[Tool] | None, per_token=True)] = None
    """Custom tools, and Anthropic's `bash`, `text_editor` and `memory`, which the client runs. The tools of Anthropic's
    servers are left out."""
    tool_choice: ToolChoice | None = None
    """Auto, any, tool, none; `disable_parallel_tool_use`."""
    thinking: Thinking | None = None
    """Reasoning of a model that has it: enabled and adaptive turn it on, disabled off, `display: "omitted"` leaves the
    text out. The template is told the budget; it cuts nothing."""
    output_config: OutputConfig | None = None
    """`format` json_schema, and `effort`, a hint as `reasoning_effort` of chat completions is."""
    output_format: JsonFormat | None = None
    """The older place of `output_config.format`."""
    context_management: ContextManagement | None = None
    """`clear_thinking_20251015` and `clear_tool_uses_20250919`; what they cleared is told in the answer."""
    # unsupported: see UNSUPPORTED
    mcp_servers: Any = UNSET
    compaction: Any = UNSET
    fallbacks: Any = UNSET
    thread: Any = UNSET


class WithoutEffectInGeneration(PromptRequest, kw_only=True):
    """Taken without effect by /v1/messages, unknown to /v1/messages/count_tokens."""

    container: Any = None
    diagnostics: Any = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class MessagesRequest(WithoutEffectInGeneration, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/messages."""

    max_tokens: Count
    """Most new tokens; at the end of the context fewer, with the `stop_reason` `model_context_window_exceeded`. 0 reads
    the prompt, so that it is cached, and writes nothing."""
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
    inference_geo: Any = UNSET


UNSUPPORTED: dict[str, Unsupported] = {
    "mcp_servers": Unsupported(([],), "the server calls no tools by itself; call them where the answer asks for it"),
    "inference_geo": Unsupported(("global",), "the server stands in one place"),
    "compaction": Unsupported((), "compact with /v1/responses/compact, or ask for a summary"),
    "fallbacks": Unsupported(("default", []), "the model that is named answers, and no other"),
    "thread": Unsupported((), "send the messages; conversations are kept by /v1/responses"),
}
"""Field name → the values at which it may be given; null always may."""

REFUSED_BLOCKS: dict[str, str] = {
    "container_upload": "there are no containers here",
}
"""Type of a content block → why it is refused."""
SERVER_BLOCKS = "the tools of Anthropic's servers, and what they bring, do not exist here"
"""Reason for refusing every other block of the API."""
