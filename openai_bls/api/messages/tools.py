"""Tools of a Messages request as functions: which are offered, which are left out, and which must be called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from openai_bls.api.common.fields import IgnoredFields, converted_fields
from openai_bls.api.messages.anthropic_tools import is_left_out, known_tool
from openai_bls.api.messages.errors import fault_at, refused
from openai_bls.api.messages.schema import (
    AnthropicTool,
    AnyToolChoice,
    AutoToolChoice,
    NoToolChoice,
    Tool,
    ToolChoice,
    ToolOptions,
)
from openai_bls.core.errors import ApiError

_PLACE = re.compile(r"^tools\[(\d+)\]")
_NOTED = ("cache_control", "eager_input_streaming", "defer_loading")


class Tools(NamedTuple):
    """Tools of a request."""

    offered: list[dict[str, Any]]
    """Functions of the chat completion."""
    left_out: dict[str, str]
    """Name of a tool that is not offered → its type."""
    places: list[int]
    """Places of the offered tools in the body."""


def read_tools(tools: list[dict[str, Any]], ignored: IgnoredFields) -> Tools:
    """The tools of a request; those that are left out are noted.

    Raises:
        InvalidRequestError: one is malformed, or of a type that nobody knows.
    """
    found = Tools([], {}, [])
    for at, value in enumerate(tools):
        where = f"tools.{at}"
        kind = value.get("type")
        if not isinstance(kind, str | None):
            raise refused(f"{where}.type", "Expected `str`")
        if kind is not None and is_left_out(kind):
            ignored.add(f"tools[{kind}]")
            found.left_out[str(value.get("name"))] = kind
            continue
        tool, function = _function(value, kind, where, ignored)
        for name in _NOTED:
            if getattr(tool, name):
                ignored.add(f"tools[].{name}")
        if tool.allowed_callers and "direct" not in tool.allowed_callers:
            ignored.add("tools[].allowed_callers")
            found.left_out[tool.name] = "only for other callers"
            continue
        found.offered.append({"type": "function", "function": function})
        found.places.append(at)
    return found


@contextmanager
def tools_placed(places: Sequence[int]) -> Iterator[None]:
    """Errors of a chat completion, raised inside, with the places that its tools have in the body.

    Args:
        places: `Tools.places`.
    """
    try:
        yield
    except ApiError as error:
        param = error.param or ""
        at = _PLACE.match(param)
        if at is not None and int(at[1]) < len(places):
            error.param = f"tools[{places[int(at[1])]}]{param[at.end() :]}"
            error.message = error.message.replace(f"'{param}'", f"'{error.param}'")
        raise


def _function(
    value: dict[str, Any], kind: str | None, where: str, ignored: IgnoredFields
) -> tuple[ToolOptions, dict[str, Any]]:
    tool: Tool | AnthropicTool
    if kind in (None, "custom"):
        tool = converted_fields(value, Tool, fault_at(where), ignored, "tools[]")
        description, schema = tool.description, tool.input_schema
    else:
        known = known_tool(str(kind))
        if known is None:
            raise refused(
                where,
                f"a tool of type {str(kind)[:100]!r} is not known: there are tools of type 'custom', which have an "
                "input_schema and are run by the client, and Anthropic's",
            )
        tool = converted_fields(value, AnthropicTool, fault_at(where), ignored, "tools[]")
        description, schema = known
    if tool.input_examples:
        examples = "\n".join(msgspec.json.encode(example).decode() for example in tool.input_examples)
        description = f"{description or ''}\n\nExamples of inputs:\n{examples}".lstrip()
    function = {"name": tool.name, "description": description, "parameters": schema, "strict": tool.strict}
    return tool, {name: value for name, value in function.items() if value is not None}


def read_tool_choice(choice: ToolChoice, tools: Tools) -> dict[str, Any]:
    """Fields of the chat completion for which tools are called.

    Raises:
        InvalidRequestError: a tool must be called that is not offered.
    """
    if not tools.offered and tools.left_out:
        if isinstance(choice, NoToolChoice | AutoToolChoice):
            # Nothing is left to choose from.
            return {}
        if isinstance(choice, AnyToolChoice):
            raise refused("tool_choice", f"no tool is left to call: this server has no {_listed(tools)}")
    if isinstance(choice, NoToolChoice):
        return {"tool_choice": "none"}
    parallel = {"parallel_tool_calls": not choice.disable_parallel_tool_use}
    if isinstance(choice, AutoToolChoice):
        return {"tool_choice": "auto", **parallel}
    if isinstance(choice, AnyToolChoice):
        return {"tool_choice": "required", **parallel}
    if choice.name in tools.left_out:
        raise refused("tool_choice.name", f"this server has no {_listed(tools)}; it cannot be called")
    return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **parallel}


def _listed(tools: Tools) -> str:
    return " and no ".join(sorted(set(tools.left_out.values())))[:200]
