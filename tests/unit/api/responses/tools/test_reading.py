"""Any JSON in the place of tools, choices and items is taken or refused, and never an exception of another kind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_bls.api.common.fields import IgnoredFields
from openai_bls.api.responses.parsing import parse_create
from openai_bls.api.responses.store import References, ResponseStore, Stored
from openai_bls.api.responses.tools.items import HostedItem
from openai_bls.api.responses.tools.reading import count_tools, read_tools
from openai_bls.api.responses.tools.schema import HostedTool
from openai_bls.core.errors import InvalidRequestError

TEXTS = st.sampled_from(
    ["", "f", "n", "n__f", "c1", "client", "server", "kept:0", "a b", "lark", 'start: "x"', "\ud800"]
)
LEAVES = st.none() | st.booleans() | st.integers(-1, 2) | TEXTS
KINDS = st.sampled_from(
    [
        *("function", "custom", "namespace", "tool_search", "grammar", "text", "input_image", "input_text", "message"),
        *(
            "function_call",
            "custom_tool_call",
            "custom_tool_call_output",
            "local_shell_call",
            "local_shell_call_output",
        ),
        *("tool_search_call", "tool_search_output", "additional_tools", "function_call_output", "allowed_tools"),
        *("reasoning", "item_reference", *HostedItem.TAGS[:3], *HostedTool.TAGS[:3]),
    ]
)
NAMES = st.sampled_from(
    [
        *(
            "name",
            "namespace",
            "description",
            "tools",
            "format",
            "syntax",
            "definition",
            "parameters",
            "strict",
            "mode",
        ),
        *("execution", "call_id", "id", "arguments", "input", "output", "action", "role", "content", "status"),
        *("defer_loading", "image_url", "summary", "encrypted_content", "what"),
    ]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.builds(lambda kind, more: {"type": kind, **more}, KINDS, st.dictionaries(NAMES, inner, max_size=6))
    ),
    max_leaves=12,
)
OBJECTS = st.builds(
    lambda kind, more: {"type": kind, "name": "f", "call_id": "c1", **more},
    KINDS,
    st.dictionaries(NAMES, JSON, max_size=5),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tools=st.lists(OBJECTS, max_size=3), items=st.lists(OBJECTS, max_size=4), choice=JSON, lenient=st.booleans())
def test_any_json(tools: list[Any], items: list[Any], choice: Any, lenient: bool) -> None:
    body = {"input": items, "tools": tools, "tool_choice": choice}
    try:
        text = msgspec.json.encode(body)
    except UnicodeEncodeError:
        text = msgspec.json.encode(body | {"input": [], "tools": [], "tool_choice": None})
    store = ResponseStore()
    references = References(store, 10**6)
    try:
        request = parse_create(text, references, 10**3, "ignore" if lenient else "refuse")
    except InvalidRequestError:
        return
    # What is taken can be stored, listed and continued.
    store.put(Stored(b'{"id": "resp_1", "output": []}', request.kept))
    again = parse_create(b'{"previous_response_id": "resp_1"}', references)
    assert again.previous is not None
    assert [item["id"] for item in again.previous.items] == [item["id"] for item in request.inputs]


@pytest.mark.parametrize(
    ("tools", "count"), [(None, 0), ([{}, {"tools": 3}], 2), ([{"tools": [1, 2, 3]}, {"tools": []}, 5], 5)]
)
def test_the_number_of_tools(tools: list[Any] | None, count: int) -> None:
    assert count_tools(tools) == count


def test_the_tools_of_a_namespace_are_counted() -> None:
    space = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": f"f{at}"} for at in range(9)]}
    for body in ({"tools": [space]}, {"input": [{"type": "additional_tools", "tools": [space]}]}):
        with pytest.raises(InvalidRequestError) as caught:
            parse_create(msgspec.json.encode({"input": "hi", **body}), References(ResponseStore(), 10**6), 8)
        assert caught.value.code == "context_length_exceeded"


def test_members_have_their_places() -> None:
    space = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}
    (placed,) = read_tools([space], "input[3].tools", IgnoredFields())
    assert (placed.param, [member.name for member in placed.members]) == ("input[3].tools[0]", ["f"])
