"""Tools as a request gives them, in `tools` and in items: checked, and those that OpenAI's service runs left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from openai_bls.api.common.bodies import fault_at
from openai_bls.api.common.fields import IgnoredFields, converted_fields
from openai_bls.api.common.unsupported import refuse_unsupported
from openai_bls.api.responses.tools import schema
from openai_bls.core.errors import InvalidRequestError

_OWN: dict[str, Any] = {
    "function": schema.FunctionTool,
    "custom": schema.CustomTool,
    "namespace": schema.NamespaceTool,
    "tool_search": schema.ToolSearchTool,
}
_PLACE = re.compile(r"\[\d+\]")


class Placed(NamedTuple):
    """A tool that the client runs, and its place in the body."""

    tool: schema.Tool
    members: tuple[schema.OwnTool, ...]
    """Tools of a namespace."""
    param: str


def is_hosted(tool: dict[str, Any]) -> bool:
    """True for a tool that OpenAI's service runs, or a choice of one."""
    kind = tool.get("type")
    if kind == "tool_search":
        return tool.get("execution") != "client"
    return kind in schema.HostedTool.TAGS


def count_tools(given: Sequence[Any] | None) -> int:
    """Number of tools as a client sent them, each of which takes at least one token."""
    return sum(max(1, len(_members(tool))) for tool in given or ())


def _members(tool: Any) -> list[Any]:
    members = tool.get("tools") if isinstance(tool, dict) else None
    return members if isinstance(members, list) else []


def read_tools(given: Sequence[dict[str, Any]], field: str, ignored: IgnoredFields) -> list[Placed]:
    """The tools of one list that the client runs.

    Args:
        given: the list.
        field: path of the list in the body.
        ignored: receiver of the names of what is left out.

    Raises:
        InvalidRequestError: a tool is not as it should be, of a kind that is not known, or its name is given twice;
            `param` is its path.
    """
    tools = []
    names: set[tuple[bool, str]] = set()
    for at, tool in enumerate(given):
        param = f"{field}[{at}]"
        if is_hosted(tool):
            ignored.add(f"{without_places(field)}[{tool['type']}]")
            continue
        placed = _read(tool, param, ignored)
        is_namespace, name = isinstance(placed.tool, schema.NamespaceTool), tool_name(placed.tool)
        if (is_namespace, name) in names:
            what = "namespaces" if is_namespace else "tools"
            raise InvalidRequestError(f"There are two {what} of the name {name!r}.", param=f"{param}.name")
        names.add((is_namespace, name))
        tools.append(placed)
    return tools


def tool_name(tool: schema.Tool) -> str:
    """Name of a tool; a search has none of its own."""
    return "tool_search" if isinstance(tool, schema.ToolSearchTool) else tool.name


def without_places(path: str) -> str:
    """A path without the places in arrays, as `IgnoredFields` has it."""
    return _PLACE.sub("[]", path)


def _read(tool: dict[str, Any], param: str, ignored: IgnoredFields) -> Placed:
    kind = tool.get("type")
    struct = _OWN.get(kind) if isinstance(kind, str) else None
    if struct is None:
        raise InvalidRequestError(
            f"Tools of type {kind!r} are not supported; supported are {', '.join(_OWN)}.",
            param=f"{param}.type",
            code="unsupported_parameter",
        )
    refuse_unsupported(tool, schema.UNSUPPORTED_IN_TOOLS, f"{param}.")
    read = converted_fields(tool, struct, fault_at(param), ignored, without_places(param))
    if not isinstance(read, schema.NamespaceTool):
        return Placed(read, (), param)
    members: dict[str, schema.OwnTool] = {}
    for at, given in enumerate(read.tools):
        place = f"{param}.tools[{at}]"
        if given.get("type") not in ("function", "custom"):
            raise InvalidRequestError(
                "The tools of a namespace are of type 'function' or 'custom'.", param=f"{place}.type"
            )
        member = _read(given, place, ignored).tool
        assert isinstance(member, schema.FunctionTool | schema.CustomTool)
        if member.name in members:
            raise InvalidRequestError(
                f"The namespace {read.name!r} has two tools of the name {member.name!r}.", param=f"{place}.name"
            )
        members[member.name] = member
    return Placed(read, tuple(members.values()), param)
