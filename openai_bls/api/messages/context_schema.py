"""Field `context_management` of the Messages API: its edits.

Source: Anthropic's API reference and the types of its Python SDK 2.12.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from openai_bls.api.common.documented import documented

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class InputTokens(msgspec.Struct, tag_field="type", tag="input_tokens", forbid_unknown_fields=True):
    """A number of tokens of the prompt."""

    value: Count


class ToolUses(msgspec.Struct, tag_field="type", tag="tool_uses", forbid_unknown_fields=True):
    """A number of tool uses."""

    value: Count


class ThinkingTurns(msgspec.Struct, tag_field="type", tag="thinking_turns", forbid_unknown_fields=True):
    """A number of assistant turns with thinking."""

    value: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class AllTurns(msgspec.Struct, tag_field="type", tag="all", forbid_unknown_fields=True):
    """All assistant turns."""


class ClearThinking(msgspec.Struct, tag_field="type", tag="clear_thinking_20251015", forbid_unknown_fields=True):
    """Clears the thinking of all but the last assistant turns that have some."""

    keep: Literal["all"] | ThinkingTurns | AllTurns = msgspec.field(default_factory=lambda: ThinkingTurns(1))
    """Number of turns whose thinking is kept; `"all"` clears nothing."""


class ClearToolUses(msgspec.Struct, tag_field="type", tag="clear_tool_uses_20250919", forbid_unknown_fields=True):
    """Clears the results of the oldest tool uses."""

    trigger: InputTokens | ToolUses = msgspec.field(default_factory=lambda: InputTokens(100_000))
    """Something is cleared once the prompt has more than this."""
    keep: ToolUses = msgspec.field(default_factory=lambda: ToolUses(3))
    """Number of last tool uses that are kept."""
    clear_at_least: InputTokens | None = None
    """Fewest tokens to clear; if less can be cleared, nothing is."""
    exclude_tools: list[str] | None = None
    """Tools whose uses are kept."""
    clear_tool_inputs: bool | list[str] | None = None
    """Clear the inputs as well: of all tools, or of these."""


Edit = ClearThinking | ClearToolUses


class ContextManagement(msgspec.Struct, forbid_unknown_fields=True):
    """Edits of the conversation before the model reads it."""

    edits: Annotated[list[dict[str, Any]] | None, documented(list[Edit] | None)] = None
    """Applied one after the other, each strategy at most once."""
