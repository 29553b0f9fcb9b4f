"""The tools of a chat completion, and which of them may be called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from openai_bls.api.chat import custom_tools, messages, schema
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ToolUse


def tool_use(request: schema.ChatCompletionRequest) -> ToolUse | None:
    """The tools that may be called; None if there are none.

    Raises:
        InvalidRequestError: a name is given twice, or `tool_choice` does not fit `tools`.
    """
    choice = request.tool_choice
    if not request.tools:
        if choice is not None and choice != "none" and (request.tools is None or choice != "auto"):
            raise InvalidRequestError("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
        return None
    _check_names(request.tools)
    if choice == "none":
        return None
    offered = [_offered(tool) for tool in request.tools]
    known = {_tool_key(tool): shown for tool, shown in zip(request.tools, offered, strict=True)}
    custom = {
        tool.custom.name: custom_tools.grammar(tool.custom, f"tools[{at}].custom")
        for at, tool in enumerate(request.tools)
        if isinstance(tool, messages.CustomTool)
    }
    if isinstance(choice, messages.NamedToolChoice | messages.NamedCustomChoice):
        callable_ = [_named(known, choice, "tool_choice")]
        name = callable_[0]["function"]["name"]
        return ToolUse(offered=offered, callable=callable_, required=True, name=name, custom=custom)
    if isinstance(choice, messages.AllowedToolsChoice):
        allowed = choice.allowed_tools
        found = {
            _key(one): _named(known, one, f"tool_choice.allowed_tools.tools[{at}]")
            for at, one in enumerate(allowed.tools)
        }
        named = list(found.values())
        required = allowed.mode == "required"
        return ToolUse(offered=offered, callable=named, required=required, checked=True, custom=custom)
    strict = any(isinstance(tool, messages.Tool) and tool.function.strict for tool in request.tools)
    checked = strict or any(custom.values())
    return ToolUse(offered=offered, callable=offered, required=choice == "required", checked=checked, custom=custom)


def _check_names(tools: Iterable[messages.Tool | messages.CustomTool]) -> None:
    """Refuse a name that is given twice: a call would not say which is meant."""
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        kind = "custom" if isinstance(tool, messages.CustomTool) else "function"
        if _name(tool) in seen:
            raise InvalidRequestError(f"'tools' have the name {_name(tool)!r} twice.", param=f"tools[{at}].{kind}.name")
        seen.add(_name(tool))


def _name(tool: messages.Tool | messages.CustomTool) -> str:
    return tool.custom.name if isinstance(tool, messages.CustomTool) else tool.function.name


def _offered(tool: messages.Tool | messages.CustomTool) -> dict[str, Any]:
    if isinstance(tool, messages.CustomTool):
        return custom_tools.as_function(tool.custom)
    function: dict[str, Any] = msgspec.to_builtins(tool)
    return function


def _tool_key(tool: messages.Tool | messages.CustomTool) -> tuple[bool, str]:
    """Key of a tool: whether it is a custom one, and its name."""
    return isinstance(tool, messages.CustomTool), _name(tool)


def _key(choice: messages.NamedToolChoice | messages.NamedCustomChoice) -> tuple[bool, str]:
    """Key of a named tool: whether it is a custom one, and its name."""
    if isinstance(choice, messages.NamedCustomChoice):
        return True, choice.custom.name
    return False, choice.function.name


def _named(
    known: Mapping[tuple[bool, str], dict[str, Any]],
    choice: messages.NamedToolChoice | messages.NamedCustomChoice,
    param: str,
) -> dict[str, Any]:
    """The tool that `choice`, the field `param`, names, as it is offered."""
    is_custom, name = _key(choice)
    found = known.get((is_custom, name))
    if found is None:
        kind = "custom tool" if is_custom else "function"
        raise InvalidRequestError(f"'{param}' names the {kind} {name!r}, which 'tools' do not have.", param=param)
    return found
