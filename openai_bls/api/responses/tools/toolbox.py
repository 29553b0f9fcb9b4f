"""The tools of one request under their flat names, and what a call of one is to the client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from openai_bls.api.responses.tools import schema
from openai_bls.api.responses.tools.names import Key, flat_name, flat_names, joined
from openai_bls.api.responses.tools.reading import Placed, tool_name
from openai_bls.core.errors import InvalidRequestError

Kind = Literal["function", "custom", "tool_search"]

SEARCH = "tool_search"
"""Name of the function that a search for tools is to the model."""
_ABOUT_SEARCH = "Search for further tools, which can be called afterwards."


class Called(msgspec.Struct, frozen=True):
    """The tool that a call of the model's is for."""

    kind: Kind
    name: str
    namespace: str | None = None


class Offered(msgspec.Struct, frozen=True):
    """A tool that the model may call."""

    tool: schema.OwnTool | schema.ToolSearchTool
    called: Called
    param: str
    """Path of the tool in the body."""
    about: str | None = None
    """Description of its namespace, if it is the first of that."""


class Toolbox:
    """The tools of one request.

    Args:
        lists: tools of `tools` and of the items that bring further ones; of two with one name the first counts.

    Raises:
        InvalidRequestError: the flat name of a namespace's tool is that of another tool.
    """

    def __init__(self, lists: Iterable[Sequence[Placed]] = ()) -> None:
        self._tools: dict[Key, Offered] = {}
        for placed in (placed for tools in lists for placed in tools):
            for offered in _offered(placed):
                self._tools.setdefault((offered.called.namespace, offered.called.name), offered)
        self._names = flat_names(self._tools)
        self._called: dict[str, Called] = {}
        self._by_name: dict[str, list[str]] = {}
        self._by_namespace: dict[str | None, list[str]] = {}
        for key, name in self._names.items():
            self._by_namespace.setdefault(key[0], []).append(name)
            self._by_name.setdefault(key[1], []).append(name)
            namespace = key[0]
            if name in self._called or (namespace is not None and (None, joined(key)) in self._tools):
                raise InvalidRequestError(
                    f"The model would see {key[1]!r} of the namespace {namespace!r} as {joined(key)!r}, which is the "
                    "name of another tool.",
                    param=below(self._tools[key].param, ".name"),
                )
            self._called[name] = self._tools[key].called

    @property
    def params(self) -> list[str]:
        """Places in the body of the tools of `chat_tools`."""
        return [offered.param for offered in self._tools.values()]

    def chat_tools(self) -> list[dict[str, Any]]:
        """The tools of a chat completion."""
        return [_chat_tool(offered, self._names[key]) for key, offered in self._tools.items()]

    def flat_name(self, name: str, namespace: str | None, kind: Kind = "function") -> str:
        """Flat name of a tool in an earlier call, whether or not it is still offered."""
        key = (namespace, name)
        if key in self._names:
            return self._names[key]
        flat = flat_name(key)
        if namespace is not None:
            # The model may call it again.
            self._called.setdefault(flat, Called(kind, name, namespace))
        return flat

    def called(self, flat: str) -> Called:
        """The tool that the model has called; any other name is a function's."""
        return self._called.get(flat) or Called("function", flat)

    def find(self, kind: Kind, name: str, namespace: str | None = None) -> list[str]:
        """Flat names of the tools that a choice may mean: without a namespace a flat name, or a name in any."""
        key = (namespace, name)
        if key in self._names:
            found = [self._names[key]]
        elif namespace is not None:
            found = []
        elif name in self._called:
            found = [name]
        else:
            found = self._by_name.get(name, [])
        return [flat for flat in found if self._called[flat].kind == kind]

    def of_namespace(self, namespace: str) -> list[str]:
        """Flat names of a namespace's tools."""
        return self._by_namespace.get(namespace, [])

    def kind(self, flat: str) -> Kind:
        """Kind of the tool of that flat name."""
        return self._called[flat].kind


def below(param: str, rest: str) -> str:
    """The path of a part of a tool; what has been stored is not in the body, and has the path of what refers to it."""
    return param + rest if param.endswith("]") else param


def _offered(placed: Placed) -> list[Offered]:
    tool = placed.tool
    if isinstance(tool, schema.NamespaceTool):
        about = f"{tool.name}: {tool.description}" if tool.description else None
        return [
            Offered(
                member,
                Called(_kind(member), member.name, tool.name),
                below(placed.param, f".tools[{at}]"),
                about if at == 0 else None,
            )
            for at, member in enumerate(placed.members)
        ]
    return [Offered(tool, Called(_kind(tool), tool_name(tool)), placed.param)]


def _kind(tool: schema.OwnTool | schema.ToolSearchTool) -> Kind:
    if isinstance(tool, schema.ToolSearchTool):
        return "tool_search"
    return "custom" if isinstance(tool, schema.CustomTool) else "function"


def _chat_tool(offered: Offered, name: str) -> dict[str, Any]:
    tool = offered.tool
    described = [text for text in (offered.about, tool.description) if text]
    shown: dict[str, Any] = {"name": name}
    if described:
        shown["description"] = "\n\n".join(described)
    if isinstance(tool, schema.CustomTool):
        return {"type": "custom", "custom": shown | _chat_format(tool.format)}
    if isinstance(tool, schema.ToolSearchTool):
        shown.setdefault("description", _ABOUT_SEARCH)
    elif tool.strict is not None:
        shown["strict"] = tool.strict
    if tool.parameters is not None:
        shown["parameters"] = tool.parameters
    return {"type": "function", "function": shown}


def _chat_format(given: schema.TextInput | schema.GrammarInput | None) -> dict[str, Any]:
    if not isinstance(given, schema.GrammarInput):
        return {}
    grammar = {"syntax": given.syntax, "definition": given.definition}
    return {"format": {"type": "grammar", "grammar": grammar}}
