"""Messages of a chat completion, their parts, and its tools, field by field.

Source: the OpenAI API reference for chat completions; vLLM's names for the additions.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from openai_bls.api.common.documented import PER_TOKEN
from openai_bls.core.media import ImageDetail

# OpenAI allows 64 characters, Anthropic 128.
FunctionName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-]+\Z")]


MAX_GRAMMAR_LENGTH = 64 * 1024
"""Characters of the grammar of a custom tool's input."""


class TextPart(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A content part; audio and files are refused."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """An assistant's refusal, fed back."""

    refusal: str


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """An image, by one of `url` and `file_id`."""

    # LiteLLM's: the image itself says what it is.
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"format"})

    url: str | None = None
    """A `data:` URI with base64 of a PNG, JPEG, WebP or still GIF, or an http or https URL of a host that the setting
    `image_url_hosts` allows."""
    detail: ImageDetail | None = None
    """`low` scales the image down to fit 512 x 512 pixels; `high`, `original` and `auto` take it as it is."""
    # ours
    file_id: str | None = None
    """A file of /v1/files with the purpose `vision` or `user_data`."""


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url", forbid_unknown_fields=True):
    """An image, for a model whose card in /v1/models has `image` among its `input_modalities`."""

    image_url: ImageUrl


Content = str | Annotated[list[TextPart | RefusalPart], PER_TOKEN]
MediaContent = str | Annotated[list[TextPart | RefusalPart | ImagePart], PER_TOKEN]


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """The function of a tool call, as an assistant message carries it."""

    FROM_A_SERVER: ClassVar[bool] = True

    name: str
    arguments: str = "{}"
    """JSON text."""


class ToolCall(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """An earlier tool call, fed back."""

    FROM_A_SERVER: ClassVar[bool] = True

    function: FunctionCall
    id: str | None = None
    index: int | None = None


class CustomCall(msgspec.Struct, forbid_unknown_fields=True):
    """The custom tool of a tool call, as an assistant message carries it."""

    FROM_A_SERVER: ClassVar[bool] = True

    name: str
    input: str


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """An earlier call of a custom tool, fed back."""

    FROM_A_SERVER: ClassVar[bool] = True

    custom: CustomCall
    id: str | None = None
    index: int | None = None


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", forbid_unknown_fields=True):
    """Instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer", forbid_unknown_fields=True):
    """Instructions under their newer name; chat templates see a system message."""

    content: Content
    name: str | None = None


class UserMessage(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True):
    """The user's words and images."""

    content: MediaContent
    name: str | None = None


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True):
    """An earlier answer. Further fields of some server's answers (annotations, say) are without effect."""

    FROM_A_SERVER: ClassVar[bool] = True

    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall | CustomToolCall] | None, PER_TOKEN] = None
    reasoning_content: str | None = None
    """Earlier reasoning, which some chat templates render again."""
    reasoning: str | None = None
    """Text of `reasoning_content` under its newer name."""
    # unsupported: null only, see `tools`
    function_call: Any = None
    audio: Any = None


class Prediction(msgspec.Struct, tag_field="type", tag="content", forbid_unknown_fields=True):
    """OpenAI's predicted output."""

    content: str | list[TextPart]


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool", forbid_unknown_fields=True):
    """A tool's result; it may have images."""

    content: MediaContent
    tool_call_id: str | None = None
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema."""
    strict: bool | None = None


class Tool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A tool whose arguments are a JSON object."""

    function: Function


class TextInput(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class InputGrammar(msgspec.Struct, forbid_unknown_fields=True):
    """A grammar."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_LENGTH)]


class GrammarInput(msgspec.Struct, tag_field="type", tag="grammar", forbid_unknown_fields=True):
    """A text of a grammar's language."""

    grammar: InputGrammar


class Custom(msgspec.Struct, forbid_unknown_fields=True):
    """A custom tool that the model may call."""

    name: FunctionName
    description: str | None = None
    format: TextInput | GrammarInput | None = None
    """Form of the input, free text unless given."""


class CustomTool(msgspec.Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """A tool whose input is text."""

    custom: Custom


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The function a `tool_choice` names."""

    name: str


class NamedToolChoice(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A `tool_choice` that names a function, or one of those that it allows."""

    function: NamedFunction


class NamedCustomChoice(msgspec.Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """A `tool_choice` that names a custom tool, or one of those that it allows."""

    custom: NamedFunction


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """A list of allowed tools, called optionally or always."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice | NamedCustomChoice], Meta(min_length=1)]


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """A `tool_choice` that allows some of the tools only."""

    allowed_tools: AllowedTools
