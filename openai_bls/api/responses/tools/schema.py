"""Tools of a request and the choices among them, field by field.

Source: the OpenAI API reference. `reading` turns them into the tools of a chat completion.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta

from openai_bls.api.chat.messages import FunctionName
from openai_bls.api.common.documented import documented
from openai_bls.api.common.unsupported import Unsupported

MAX_GRAMMAR_LENGTH = 64 * 1024
"""Characters of the grammar of a custom tool's input."""


class FunctionTool(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema."""
    strict: bool | None = None
    """None is false: OpenAI would rewrite the schema until it can be enforced."""
    # unsupported: see UNSUPPORTED_IN_TOOLS
    allowed_callers: Any = UNSET
    background: Any = msgspec.field(default=UNSET, name="async")


class TextInput(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class GrammarInput(msgspec.Struct, tag_field="type", tag="grammar", forbid_unknown_fields=True):
    """Text of a grammar's language."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_LENGTH)]


class CustomTool(msgspec.Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """A tool whose input is text."""

    name: FunctionName
    description: str | None = None
    format: TextInput | GrammarInput | None = None
    """Form of the input; free text unless given."""
    # unsupported: see UNSUPPORTED_IN_TOOLS
    allowed_callers: Any = UNSET
    background: Any = msgspec.field(default=UNSET, name="async")


class NamespaceTool(msgspec.Struct, tag_field="type", tag="namespace", forbid_unknown_fields=True):
    """Functions and custom tools that share a namespace. The model sees each as `namespace__name`."""

    name: FunctionName
    # Read one by one by `reading`.
    tools: Annotated[list[dict[str, Any]], documented(list[FunctionTool | CustomTool])]
    description: str | None = None
    """Shown to the model with the first of the tools."""


class ToolSearchTool(msgspec.Struct, tag_field="type", tag="tool_search", forbid_unknown_fields=True):
    """A search for further tools that the client runs; the model sees it as a function."""

    execution: Literal["client", "server"] | None = None
    """`client`; a search that OpenAI's service runs is left out."""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema."""


OwnTool = FunctionTool | CustomTool
Tool = FunctionTool | CustomTool | NamespaceTool | ToolSearchTool
"""Tools that the client runs."""


class HostedTool(msgspec.Struct, tag_field="type", tag="web_search"):
    """A tool that OpenAI's service runs; left out, and named in the header `openai-bls-ignored`."""

    TAGS: ClassVar[tuple[str, ...]] = (
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "file_search",
        "code_interpreter",
        "image_generation",
        "mcp",
        "computer",
        "computer_use",
        "computer_use_preview",
        "local_shell",
        "shell",
        "apply_patch",
        "programmatic_tool_calling",
    )


class FunctionChoice(msgspec.Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A `tool_choice` that names a function."""

    name: str
    namespace: str | None = None
    """Needed where several namespaces have a function of that name."""


class CustomChoice(msgspec.Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """A `tool_choice` that names a custom tool."""

    name: str
    namespace: str | None = None


class ToolSearchChoice(msgspec.Struct, tag_field="type", tag="tool_search", forbid_unknown_fields=True):
    """A `tool_choice` that is the client's tool search."""


class NamespaceChoice(msgspec.Struct, tag_field="type", tag="namespace", forbid_unknown_fields=True):
    """All tools of a namespace."""

    name: str


OneTool = FunctionChoice | CustomChoice | ToolSearchChoice
SomeTools = FunctionChoice | CustomChoice | ToolSearchChoice | NamespaceChoice


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """A `tool_choice` that allows some of the tools only."""

    mode: Literal["auto", "required"]
    # Read one by one by `choice`.
    tools: Annotated[
        list[dict[str, Any]],
        Meta(min_length=1),
        documented(Annotated[list[SomeTools], Meta(min_length=1)]),
    ]


ToolChoice = Literal["none", "auto", "required"] | OneTool | AllowedToolsChoice

UNSUPPORTED_IN_TOOLS: dict[str, Unsupported] = {
    "allowed_callers": Unsupported(
        (["direct"], ["direct", "programmatic"], ["programmatic", "direct"]),
        "there is no programmatic tool calling here",
    ),
    "async": Unsupported((False,), "calls are answered in the next request"),
}
"""Field of a tool → the values at which it may be given; null always may."""
