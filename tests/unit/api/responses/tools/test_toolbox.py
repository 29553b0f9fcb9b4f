"""The tools of a request as the model sees them, and its calls as the client does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.responses.tools.reading import read_tools
from openai_bls.api.responses.tools.toolbox import Called, Toolbox
from openai_bls.core.errors import InvalidRequestError

NAMES = st.text("ab_", min_size=1, max_size=4)


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


def namespace(name: str, *tools: dict[str, Any], description: str | None = None) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": description, "tools": list(tools)}


def toolbox(*tools: dict[str, Any]) -> Toolbox:
    return Toolbox([read_tools(tools, "tools", IgnoredFields())])


@given(st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=4), max_size=4), st.lists(NAMES, unique=True))
def test_every_tool_is_called_by_its_flat_name(spaces: dict[str, list[str]], plain: list[str]) -> None:
    given_tools = [function(name) for name in plain]
    given_tools += [namespace(name, *map(function, names)) for name, names in spaces.items()]
    if {f"{space}__{name}" for space, names in spaces.items() for name in names} & set(plain):
        with pytest.raises(InvalidRequestError) as caught:
            toolbox(*given_tools)
        assert (caught.value.param or "").endswith("].name")
        return
    box = toolbox(*given_tools)
    flat = [tool["function"]["name"] for tool in box.chat_tools()]
    assert len(set(flat)) == len(flat) == len(plain) + sum(map(len, spaces.values()))
    called = {(found.namespace, found.name) for found in map(box.called, flat)}
    assert called == {(None, name) for name in plain} | {(s, name) for s, names in spaces.items() for name in names}
    assert [box.flat_name(found.name, found.namespace) for found in map(box.called, flat)] == flat


def test_what_the_model_sees() -> None:
    schema = {"type": "object", "properties": {}}
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    box = toolbox(
        function("f", description="F.", parameters=schema, strict=True),
        namespace("n", function("f", description="NF."), function("g"), description="About n."),
        {"type": "custom", "name": "c", "description": "C.", "format": grammar},
        {"type": "custom", "name": "t", "format": {"type": "text"}},
        {"type": "tool_search", "execution": "client", "parameters": schema},
    )
    plain, first, second, custom, text, search = box.chat_tools()
    assert plain["function"] == {"name": "f", "description": "F.", "parameters": schema, "strict": True}
    assert first["function"] == {"name": "n__f", "description": "n: About n.\n\nNF."}
    # Once, as it may be long and there may be many.
    assert second["function"] == {"name": "n__g"}
    shown = {"syntax": "lark", "definition": 'start: "x"'}
    assert custom == {
        "type": "custom",
        "custom": {"name": "c", "description": "C.", "format": {"type": "grammar", "grammar": shown}},
    }
    assert text == {"type": "custom", "custom": {"name": "t"}}
    assert (search["function"]["name"], search["function"]["parameters"]) == ("tool_search", schema)
    assert box.params == ["tools[0]", "tools[1].tools[0]", "tools[1].tools[1]", "tools[2]", "tools[3]", "tools[4]"]


def test_calls() -> None:
    box = toolbox(
        namespace("n", function("f"), {"type": "custom", "name": "c"}), {"type": "tool_search", "execution": "client"}
    )
    assert box.called("n__f") == Called("function", "f", "n")
    assert box.called("n__c") == Called("custom", "c", "n")
    assert box.called("tool_search") == Called("tool_search", "tool_search")
    # What the model makes up is the client's to refuse.
    assert box.called("n__g") == Called("function", "n__g")
    # An earlier call of a tool that is not offered any more.
    assert box.flat_name("g", "n") == "n__g"
    assert box.called("n__g") == Called("function", "g", "n")


def test_a_tool_that_comes_again_is_one_tool() -> None:
    first = read_tools([namespace("n", function("f", description="1"))], "tools", IgnoredFields())
    again = read_tools(
        [namespace("n", function("f", description="2"), function("g"))], "input[3].tools", IgnoredFields()
    )
    box = Toolbox([first, again])
    assert [tool["function"] for tool in box.chat_tools()] == [{"name": "n__f", "description": "1"}, {"name": "n__g"}]
    assert box.params == ["tools[0].tools[0]", "input[3].tools[0].tools[1]"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([namespace("n"), namespace("n")], "tools[1].name"),
        ([namespace("n", function("f"), function("f"))], "tools[0].tools[1].name"),
        ([function("f"), {"type": "custom", "name": "f"}], "tools[1].name"),
        ([function("n__f"), namespace("n", function("f"))], "tools[1].tools[0].name"),
        ([namespace("n", function("f")), function("n__f")], "tools[0].tools[0].name"),
        ([function("tool_search"), {"type": "tool_search", "execution": "client"}], "tools[1].name"),
        ([namespace("n", function("a b"))], "tools[0].tools[0].name"),
        ([namespace("n", function("f", strict=1))], "tools[0].tools[0].strict"),
        ([namespace("n", {"type": "web_search"})], "tools[0].tools[0].type"),
        ([namespace("n", namespace("m"))], "tools[0].tools[0].type"),
        ([namespace("n", function("f", **{"async": True}))], "tools[0].tools[0].async"),
        ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ([{"type": "namespace", "name": "n", "tools": 3}], "tools[0].tools"),
        ([{"type": "namespace", "tools": []}], "tools[0].name"),
        ([{"type": "custom"}], "tools[0].name"),
        ([{"type": "custom", "name": "c", "format": {"type": "xml"}}], "tools[0].format.type"),
        (
            [{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark"}}],
            "tools[0].format.definition",
        ),
        (
            [{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}],
            "tools[0].format.syntax",
        ),
        ([{"type": "tool_search", "execution": "client", "parameters": 3}], "tools[0].parameters"),
        ([{"type": "telepathy"}], "tools[0].type"),
        ([{}], "tools[0].type"),
    ],
)
def test_refused(tools: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        toolbox(*tools)
    assert caught.value.param == param


def test_hosted_tools_are_left_out_and_named() -> None:
    ignored = IgnoredFields()
    kinds = ["web_search", "web_search_preview", "image_generation", "mcp", "local_shell", "tool_search"]
    tools = [{"type": kind, "external_web_access": False} for kind in kinds]
    assert read_tools(tools, "tools", ignored) == []
    assert ignored.names == tuple(f"tools[{kind}]" for kind in kinds)


def test_what_changes_nothing_is_named() -> None:
    ignored = IgnoredFields()
    hints = {"defer_loading": True, "output_schema": {"type": "string"}, "allowed_callers": ["direct"]}
    (read,) = read_tools([namespace("n", function("f", **hints))], "tools", ignored)
    assert [member.name for member in read.members] == ["f"]
    assert set(ignored.names) == {"tools[].tools[].defer_loading", "tools[].tools[].output_schema"}
