"""`tool_choice` of a response as that of the chat completion."""

from __future__ import annotations

from typing import Any

import msgspec

from openai_bls.api.common.bodies import fault_at
from openai_bls.api.common.fields import IgnoredFields, converted_fields
from openai_bls.api.responses.tools import schema
from openai_bls.api.responses.tools.reading import is_hosted
from openai_bls.api.responses.tools.toolbox import SEARCH, Kind, Toolbox
from openai_bls.core.errors import InvalidRequestError

_FIELD = "tool_choice"
# Unions, which msgspec takes for types.
_ONE: Any = schema.OneTool
_SOME: Any = schema.SomeTools


def chat_choice(given: str | dict[str, Any] | None, toolbox: Toolbox, ignored: IgnoredFields) -> Any:
    """The chat completion's `tool_choice`.

    Args:
        given: `tool_choice` of the request.
        toolbox: tools of the request.
        ignored: receiver of the names of what is left out.

    Raises:
        InvalidRequestError: it names a tool that is not there or that OpenAI's service runs; `param` is its path.
    """
    if not isinstance(given, dict):
        return given
    if given.get("type") != "allowed_tools":
        _refuse_hosted(given, _FIELD)
        choice: schema.OneTool = converted_fields(given, _ONE, fault_at(_FIELD), ignored, _FIELD)
        return _named(toolbox, _find(choice, toolbox, _FIELD)[0])
    allowed = converted_fields(given, schema.AllowedToolsChoice, fault_at(_FIELD), ignored, _FIELD)
    names: list[str] = []
    read: set[tuple[object, ...]] = set()
    for at, tool in enumerate(allowed.tools):
        if _is_hosted(tool):
            ignored.add(f"{_FIELD}.tools[{tool['type']}]")
            continue
        param = f"{_FIELD}.tools[{at}]"
        one: schema.SomeTools = converted_fields(tool, _SOME, fault_at(param), ignored, f"{_FIELD}.tools[]")
        key = (type(one), *msgspec.structs.astuple(one))
        # One that is named again and again is looked for once.
        names += [] if key in read else _find(one, toolbox, param)
        read.add(key)
    if not names:
        if allowed.mode == "required":
            _refuse_hosted(allowed.tools[0], f"{_FIELD}.tools[0]")
        return "none"
    tools = [_named(toolbox, name) for name in dict.fromkeys(names)]
    return {"type": "allowed_tools", "allowed_tools": {"mode": allowed.mode, "tools": tools}}


def _is_hosted(choice: dict[str, Any]) -> bool:
    # A choice does not say who runs the search: it is the client's if there is one.
    return choice.get("type") != SEARCH and is_hosted(choice)


def _refuse_hosted(choice: dict[str, Any], param: str) -> None:
    if _is_hosted(choice):
        raise InvalidRequestError(
            f"'{param}' asks for the tool {choice['type']!r}, which this server does not have: tools are run by the "
            "client.",
            param=f"{param}.type",
            code="unsupported_parameter",
        )


def _find(
    choice: schema.SomeTools,
    toolbox: Toolbox,
    param: str,
) -> list[str]:
    """Flat names of the tools that a choice names: at least one, and one unless it is a namespace."""
    if isinstance(choice, schema.NamespaceChoice):
        found, what = toolbox.of_namespace(choice.name), f"the namespace {choice.name!r}"
    elif isinstance(choice, schema.ToolSearchChoice):
        found, what = toolbox.find("tool_search", SEARCH), "a tool search of the client"
    else:
        kind: Kind = "function" if isinstance(choice, schema.FunctionChoice) else "custom"
        found, what = toolbox.find(kind, choice.name, choice.namespace), f"the {kind} tool {choice.name!r}"
    if not found:
        raise InvalidRequestError(f"'{param}' names {what}, which 'tools' do not have.", param=param)
    if len(found) > 1 and not isinstance(choice, schema.NamespaceChoice):
        raise InvalidRequestError(
            f"'{param}' names {what}, which {len(found)} namespaces have: add its 'namespace'.", param=param
        )
    return found


def _named(toolbox: Toolbox, flat: str) -> dict[str, Any]:
    kind = "custom" if toolbox.kind(flat) == "custom" else "function"
    return {"type": kind, kind: {"name": flat}}
