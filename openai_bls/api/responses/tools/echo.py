"""The tools of a request, as its response shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openai_bls.api.responses.tools import schema
from openai_bls.api.responses.tools.reading import Placed


def echo(tools: Iterable[Placed]) -> list[dict[str, Any]]:
    """The tools that the client runs, with what they have unless the request says otherwise."""
    return [_tool(placed.tool, placed.members) for placed in tools]


def _tool(tool: schema.Tool, members: Iterable[schema.OwnTool] = ()) -> dict[str, Any]:
    if isinstance(tool, schema.NamespaceTool):
        shown: dict[str, Any] = {"type": "namespace", "name": tool.name, "description": tool.description or ""}
        return {**shown, "tools": [_tool(member) for member in members]}
    if isinstance(tool, schema.CustomTool):
        shown = {"type": "custom", "name": tool.name, "description": tool.description}
        return {**shown, "format": tool.format or schema.TextInput()}
    described = {"description": tool.description, "parameters": tool.parameters}
    if isinstance(tool, schema.ToolSearchTool):
        return {"type": "tool_search", "execution": "client", **described}
    return {"type": "function", "name": tool.name, **described, "strict": bool(tool.strict)}
