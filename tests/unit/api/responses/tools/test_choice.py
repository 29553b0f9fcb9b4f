"""`tool_choice`: the tools of a request by their kinds, names and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.responses.tools.choice import chat_choice
from openai_bls.core.errors import InvalidRequestError
from tests.unit.api.responses.tools.test_toolbox import function, namespace, toolbox

BOX = toolbox(
    function("f"),
    namespace("n", function("f"), function("g"), {"type": "custom", "name": "c"}),
    namespace("m", function("g")),
    {"type": "custom", "name": "patch"},
    {"type": "tool_search", "execution": "client"},
)


def choose(choice: Any, ignored: IgnoredFields | None = None) -> Any:
    return chat_choice(choice, BOX, ignored or IgnoredFields())


def allowed(*tools: dict[str, Any], mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


@pytest.mark.parametrize(
    ("choice", "kind", "flat"),
    [
        ({"type": "function", "name": "f"}, "function", "f"),
        ({"type": "function", "name": "f", "namespace": "n"}, "function", "n__f"),
        ({"type": "function", "name": "n__g"}, "function", "n__g"),
        ({"type": "custom", "name": "patch"}, "custom", "patch"),
        # The only one of that name.
        ({"type": "custom", "name": "c"}, "custom", "n__c"),
        ({"type": "tool_search"}, "function", "tool_search"),
    ],
)
def test_one_tool(choice: dict[str, Any], kind: str, flat: str) -> None:
    assert choose(choice) == {"type": kind, kind: {"name": flat}}


def test_some_tools() -> None:
    ignored = IgnoredFields()
    given = allowed(
        {"type": "namespace", "name": "n"}, {"type": "custom", "name": "patch"}, {"type": "web_search"}, mode="required"
    )
    found = choose(given, ignored)["allowed_tools"]
    assert found["mode"] == "required"
    assert [tool[tool["type"]]["name"] for tool in found["tools"]] == ["n__f", "n__g", "n__c", "patch"]
    assert ignored.names == ("tool_choice.tools[web_search]",)
    assert choose(allowed({"type": "mcp", "server_label": "x"})) == "none"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "name": "g"}, "tool_choice"),
        ({"type": "function", "name": "h"}, "tool_choice"),
        ({"type": "function", "name": "patch"}, "tool_choice"),
        ({"type": "function", "name": "f", "namespace": "m"}, "tool_choice"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "web_search_preview"}, "tool_choice.type"),
        ({"type": "mcp", "server_label": "x"}, "tool_choice.type"),
        ({"type": "telepathy"}, "tool_choice.type"),
        ({}, "tool_choice.type"),
        (allowed(), "tool_choice.tools"),
        (allowed({"type": "function", "name": "h"}), "tool_choice.tools[0]"),
        (allowed({"type": "namespace", "name": "h"}), "tool_choice.tools[0]"),
        (allowed({"type": "image_generation"}, mode="required"), "tool_choice.tools[0].type"),
    ],
)
def test_refused(choice: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        choose(choice)
    assert caught.value.param == param
