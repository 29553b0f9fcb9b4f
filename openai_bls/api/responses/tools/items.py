"""Input items about tools other than functions: validated, and as a response lists them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from openai_bls.api.common.documented import documented
from openai_bls.api.common.encoding import encode, new_id
from openai_bls.api.common.faults import TOO_DEEP
from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.responses.tools.reading import Placed, is_hosted, read_tools, without_places
from openai_bls.api.responses.tools.schema import HostedTool, Tool
from openai_bls.api.responses.tools.toolbox import SEARCH, Toolbox
from openai_bls.core.errors import InvalidRequestError

Item = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]

# Read one by one by `reading`.
_Tools = Annotated[list[dict[str, Any]], documented(list[Tool | HostedTool])]


class CustomToolCall(msgspec.Struct, tag_field="type", tag="custom_tool_call", forbid_unknown_fields=True):
    """A call of a custom tool that the model made."""

    FROM_A_SERVER: ClassVar[bool] = True

    call_id: str
    name: str
    input: str
    id: str | None = None
    status: Status | None = None
    namespace: str | None = None
    # unsupported: see UNSUPPORTED_IN_ITEMS
    caller: Any = None
    background: Any = msgspec.field(default=None, name="async")


class LocalShellCall(msgspec.Struct, tag_field="type", tag="local_shell_call", forbid_unknown_fields=True):
    """A command that a model has had run in the client's shell; the model sees a call of `local_shell`."""

    FROM_A_SERVER: ClassVar[bool] = True

    call_id: str
    action: dict[str, Any]
    id: str | None = None
    status: Status | None = None


class LocalShellCallOutput(msgspec.Struct, tag_field="type", tag="local_shell_call_output", forbid_unknown_fields=True):
    """The result of such a command."""

    id: str
    """`call_id` or `id` of the call."""
    output: str
    call_id: str | None = None
    status: Status | None = None


class ToolSearchCall(msgspec.Struct, tag_field="type", tag="tool_search_call", forbid_unknown_fields=True):
    """A search for tools. One that OpenAI's service ran is left out."""

    FROM_A_SERVER: ClassVar[bool] = True

    arguments: Any
    execution: Literal["client", "server"] | None = None
    call_id: str | None = None
    id: str | None = None
    status: Status | None = None


class ToolSearchOutput(msgspec.Struct, tag_field="type", tag="tool_search_output", forbid_unknown_fields=True):
    """The tools that a search has found, which are offered from then on."""

    tools: _Tools
    execution: Literal["client", "server"] | None = None
    call_id: str | None = None
    id: str | None = None
    status: Status | None = None


class AdditionalTools(msgspec.Struct, tag_field="type", tag="additional_tools", forbid_unknown_fields=True):
    """Further tools, offered as those of `tools` are."""

    tools: _Tools
    role: Literal["developer"] = "developer"
    id: str | None = None


class HostedItem(msgspec.Struct, tag_field="type", tag="web_search_call"):
    """A step of a tool that OpenAI's service runs; listed, but left out of the prompt, and named in the header
    `openai-bls-ignored`."""

    TAGS: ClassVar[tuple[str, ...]] = (
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "computer_call",
        "computer_call_output",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "program",
        "program_output",
    )

    id: str | None = None


ToolItem = CustomToolCall | LocalShellCall | LocalShellCallOutput | ToolSearchCall | ToolSearchOutput | AdditionalTools
HOSTED_ITEMS = frozenset(HostedItem.TAGS)
"""Types of items that are left out of the prompt."""

# Levels of nesting that an item may get around it, and frames of Python that count like levels.
_OUTER_LEVELS = 100


def listed(item: ToolItem, at: str, ignored: IgnoredFields) -> Item:
    """An item as a response lists it.

    Args:
        item: the item.
        at: path of the item in the body.
        ignored: receiver of the names of what is left out.

    Raises:
        InvalidRequestError: it has a tool that is not as it should be, or has no `call_id`, or is nested too deeply.
    """
    if isinstance(item, AdditionalTools):
        read_tools(item.tools, f"{at}.tools", ignored)
        own = {"role": item.role, "tools": item.tools}
        return _checked({"id": item.id or new_id("at_"), "type": "additional_tools", **own}, at)
    head: Item = {"id": item.id or new_id(_PREFIXES[type(item)]), "type": item.__struct_config__.tag}
    head["status"] = item.status or "completed"
    if isinstance(item, CustomToolCall):
        named = {} if item.namespace is None else {"namespace": item.namespace}
        return {**head, "call_id": item.call_id, "name": item.name, **named, "input": item.input}
    if isinstance(item, LocalShellCall):
        return _checked({**head, "call_id": item.call_id, "action": item.action}, at)
    if isinstance(item, LocalShellCallOutput):
        answered = {} if item.call_id is None else {"call_id": item.call_id}
        return {**head, **answered, "output": item.output}
    return _searched(item, head, at, ignored)


def _searched(item: ToolSearchCall | ToolSearchOutput, head: Item, at: str, ignored: IgnoredFields) -> Item:
    execution = item.execution or ("server" if item.call_id is None else "client")
    if execution == "server":
        ignored.add(f"{without_places(at).removesuffix('[]')}[{head['type']}]")
    elif item.call_id is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{at}.call_id'", param=f"{at}.call_id", code="missing_required_parameter"
        )
    head |= {"execution": execution, "call_id": item.call_id}
    if isinstance(item, ToolSearchCall):
        return _checked({**head, "arguments": item.arguments}, at)
    if execution == "client":
        read_tools(item.tools, f"{at}.tools", ignored)
    return _checked({**head, "tools": item.tools}, at)


def hosted_item(given: Item, at: str, ignored: IgnoredFields) -> Item:
    """A step of a tool that OpenAI's service ran, as it was sent, with an id.

    Raises:
        InvalidRequestError: its id is no text, or it is nested too deeply.
    """
    item_id = given.get("id")
    if item_id is not None and not isinstance(item_id, str):
        raise InvalidRequestError(f"Invalid value for '{at}.id': Expected `str`.", param=f"{at}.id")
    ignored.add(f"{without_places(at).removesuffix('[]')}[{given['type']}]")
    return _checked({**given, "id": item_id or new_id("item_")}, at)


def is_left_out(item: Item) -> bool:
    """True for a listed item that the prompt does not have."""
    return item["type"] in HOSTED_ITEMS or item.get("execution") == "server"


def item_tools(item: Item, field: str, ignored: IgnoredFields) -> list[Placed]:
    """The tools that a listed item brings.

    Args:
        item: the item.
        field: path of the item in the body.
        ignored: receiver of the names of what is left out.
    """
    if item["type"] not in ("additional_tools", "tool_search_output") or is_left_out(item):
        return []
    return read_tools(item["tools"], f"{field}.tools", ignored)


def arguments_text(item: Item) -> str:
    """Arguments of a listed call of `local_shell` or of a search, as the model writes them."""
    arguments = item["action"] if item["type"] == "local_shell_call" else item["arguments"]
    return arguments if isinstance(arguments, str) else encode(arguments).decode()


def found_text(item: Item, toolbox: Toolbox) -> str:
    """The result of a listed search, as the model reads it: the names of the tools that can be called now."""
    names: list[str] = []
    for tool in item["tools"]:
        if tool["type"] == "namespace":
            names += [toolbox.flat_name(member["name"], tool["name"]) for member in tool["tools"]]
        elif not is_hosted(tool):
            names.append(toolbox.flat_name(tool.get("name", SEARCH), None))
    return encode({"tools": names}).decode()


def _checked(item: Item, at: str) -> Item:
    """An item that may hold any JSON, which must not turn out to be nested too deeply when a response is stored."""
    nested: Any = item
    for _ in range(_OUTER_LEVELS):
        nested = [nested]
    try:
        encode(nested)
    except RecursionError:
        raise InvalidRequestError(TOO_DEEP, param=at) from None
    return item


_PREFIXES: dict[Any, str] = {
    CustomToolCall: "ctc_",
    LocalShellCall: "lsh_",
    LocalShellCallOutput: "lsho_",
    ToolSearchCall: "tsc_",
    ToolSearchOutput: "tso_",
}
CALL_NAMES = {"local_shell_call": "local_shell", "tool_search_call": SEARCH}
"""Functions that the model sees in the place of calls of other kinds."""
