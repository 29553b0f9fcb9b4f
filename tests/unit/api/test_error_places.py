"""Errors of a request's parts: whatever the part and wherever it is, `param` begins with its place."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_bls.api.messages.errors import error_body
from openai_bls.core.errors import ApiError
from tests.unit.api.http_support import application
from tests.unit.core_support import Answered, Bench, ask, engine_info, until

Body = dict[str, Any]
Path = tuple[str | int, ...]

NO_SCHEMA = {"type": "object", "properties": {"a": {"type": "nothing"}}}
"""A schema that no grammar can be made of."""
TEXTS = st.text("ab c", min_size=1, max_size=5)
NAMES = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


class Plant(NamedTuple):
    """A part of a valid request, and what is wrong in its place."""

    place: Path
    bad: Any
    added: bool = False
    """The bad part is one more of the array that `place` ends in."""


def planted(body: Body, plant: Plant) -> Body:
    """The body with the bad part."""
    body = copy.deepcopy(body)
    *parents, last = plant.place
    at: Any = body
    for name in parents:
        at = at[name]
    if plant.added:
        at.insert(last, plant.bad)
    else:
        at[last] = plant.bad
    return body


def written(place: Path) -> str:
    """A place as OpenAI writes it."""
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in place).removeprefix(".")


def plants(draw: st.DrawFn, body: Body, lists: list[tuple[Path, list[Any]]]) -> Plant:
    """A bad part among those of one of the lists, or in the place of one.

    Args:
        draw: draws.
        body: the valid body.
        lists: path of each array of the body, and the parts that are refused in it.
    """
    path, bad = draw(st.sampled_from(lists))
    found: Any = body
    for name in path:
        found = found[name]
    at = draw(st.integers(0, len(found)))
    added = at == len(found) or draw(st.booleans())
    return Plant((*path, at), draw(st.sampled_from(bad)), added)


BAD_PARTS: list[Any] = [
    {"type": "text"},
    {"type": "text", "text": 5},
    {"type": "text", "text": "a", "colour": 1},
    {"type": "none"},
    {"text": "a"},
    7,
]
BAD_IMAGES = [
    {"type": "image_url", "image_url": {"url": "data:image/png,abc"}},
    {"type": "image_url", "image_url": {"url": "ftp://a/b"}},
    {"type": "image_url", "image_url": {"url": "a", "file_id": "b"}},
    {"type": "image_url", "image_url": {}},
    {"type": "image_url", "image_url": {"file_id": "file-0"}},
    {"type": "image_url", "image_url": {"url": "http://a.test/b.png"}},
    {"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
]
BAD_CALLS: list[Any] = [{"type": "function"}, {"type": "function", "function": {}}, {"type": "none"}, 3]


def chat_tool(name: str, **more: Any) -> Body:
    return {"type": "function", "function": {"name": name, **more}}


@st.composite
def chats(draw: st.DrawFn) -> tuple[Body, Plant]:
    messages: list[Body] = []
    lists: list[tuple[Path, list[Any]]] = []
    for at in range(draw(st.integers(1, 4))):
        role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))
        message: Body = {"role": role}
        messages.append(message)
        if draw(st.booleans()):
            message["content"] = draw(TEXTS)
        else:
            message["content"] = [
                {"type": "text", "text": text} for text in draw(st.lists(TEXTS, min_size=1, max_size=4))
            ]
            lists.append((("messages", at, "content"), BAD_PARTS + BAD_IMAGES))
        if role == "assistant" and draw(st.booleans()):
            names = draw(NAMES)
            message["tool_calls"] = [chat_tool(name) | {"id": name} for name in names]
            lists.append((("messages", at, "tool_calls"), BAD_CALLS))
    lists.append((("messages",), [{"role": "none", "content": "a"}, {"role": "user"}, {"content": "a"}, "a"]))
    names = draw(NAMES)
    tools = [chat_tool(name) for name in names]
    bad_tools = [
        chat_tool("a b"),
        chat_tool("", description="a"),
        chat_tool("zz", strict=True, parameters=NO_SCHEMA),
        {
            "type": "custom",
            "custom": {"name": "zz", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}},
        },
        {"type": "none"},
        5,
    ]
    lists.append((("tools",), bad_tools))
    allowed = [{"type": "function", "function": {"name": name}} for name in names]
    choice: Body = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
    stop = draw(st.lists(TEXTS, min_size=1, max_size=2))
    lists.append((("stop",), ["", 5]))
    body: Body = {"messages": messages, "tools": tools, "stop": stop}
    if draw(st.booleans()):
        body["tool_choice"] = choice
        lists.append((("tool_choice", "allowed_tools", "tools"), [chat_tool("zz"), {"type": "none"}, 1]))
        # Of those that may be called: a further tool may not.
        lists = [(path, bad) for path, bad in lists if path != ("tools",)]
    return body, plants(draw, body, lists)


@st.composite
def responses(draw: st.DrawFn) -> tuple[Body, Plant]:
    items: list[Body] = []
    lists: list[tuple[Path, list[Any]]] = []
    image: Body = {"type": "input_image"}
    bad_parts = [
        *({"type": "input_text", "text": 5}, {"type": "input_text"}, {"type": "none"}, 7, {"text": "a"}),
        *(image, image | {"image_url": "data:image/png,abc"}, image | {"image_url": "a", "file_id": "b"}),
        *(image | {"file_id": "file-0"}, image | {"image_url": "ftp://a/b"}, image | {"image_url": {"url": "a"}}),
    ]
    for at in range(draw(st.integers(1, 4))):
        role = draw(st.sampled_from(["system", "developer", "user", "assistant"]))
        items.append({"type": "message", "role": role, "content": draw(TEXTS)})
        if draw(st.booleans()):
            kind = "output_text" if role == "assistant" else "input_text"
            texts = draw(st.lists(TEXTS, min_size=1, max_size=4))
            items[-1]["content"] = [{"type": kind, "text": text} for text in texts]
            lists.append((("input", at, "content"), bad_parts))
    for name in draw(st.lists(st.text("abc", min_size=1), max_size=2, unique=True)):
        items.append({"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"})
        output = [{"type": "input_text", "text": text} for text in draw(st.lists(TEXTS, min_size=1, max_size=3))]
        items.append({"type": "function_call_output", "call_id": name, "output": output})
        lists.append((("input", len(items) - 1, "output"), bad_parts))
    bad_items = [
        *({"type": "none"}, {"type": "message", "role": "user"}, {"role": "none", "content": "a"}),
        *({"type": "function_call", "name": "f"}, {"type": "function_call_output", "call_id": "zz", "output": "a"}),
        *({"type": "item_reference", "id": "zz"}, {"type": "compaction", "encrypted_content": "zz"}),
    ]
    lists.append((("input",), bad_items))
    tools: list[Body] = [{"type": "function", "name": name, "parameters": None} for name in draw(NAMES)]
    hosted = draw(st.integers(0, len(tools)))
    tools[hosted:hosted] = [{"type": "web_search"}] * draw(st.integers(0, 2))
    bad_tools: list[Any] = [
        {"type": "function", "name": "a b"},
        {"type": "function", "name": "zz", "strict": True, "parameters": NO_SCHEMA},
        {"type": "custom", "name": "zz", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "function"},
        {"type": "none"},
    ]
    lists += [(("tools",), bad_tools), (("include",), ["none", 5])]
    body: Body = {"input": items, "tools": tools, "include": ["reasoning.encrypted_content"]}
    return body, plants(draw, body, lists)


@st.composite
def messages_bodies(draw: st.DrawFn) -> tuple[Body, Plant]:
    lists: list[tuple[Path, list[Any]]] = []

    def source(kind: str, **fields: str) -> Body:
        return {"type": "image", "source": {"type": kind, **fields}}

    bad_blocks = [
        *({"type": "text"}, {"type": "text", "text": 5}, {"type": "none"}, {"text": "a"}),
        *(source("base64", media_type="image/png"), source("url", url="ftp://a/b"), source("file", file_id="file-0")),
        *({"type": "document", "source": {"type": "url", "url": "a"}}, {"type": "tool_result"}),
    ]

    def blocks(place: Path) -> list[Body]:
        lists.append((place, bad_blocks))
        return [{"type": "text", "text": text} for text in draw(st.lists(TEXTS, min_size=1, max_size=3))]

    messages: list[Body] = []
    for at in range(draw(st.integers(0, 3))):
        messages.append({"role": draw(st.sampled_from(["user", "assistant"])), "content": draw(TEXTS)})
        if draw(st.booleans()):
            messages[-1]["content"] = blocks(("messages", at, "content"))
    if draw(st.booleans()):
        at = len(messages)
        messages.append({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]})
        inner = blocks(("messages", at + 1, "content", 0, "content"))
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": inner}]})
    messages.append({"role": "user", "content": draw(TEXTS)})
    lists.append((("messages",), [{"role": "none", "content": "a"}, {"role": "user"}, {"content": "a"}, "a"]))
    tools: list[Body] = [{"name": name, "input_schema": {"type": "object"}} for name in draw(NAMES)]
    hosted = draw(st.integers(0, len(tools)))
    tools[hosted:hosted] = [{"type": "web_search_20250305", "name": "web_search"}] * draw(st.integers(0, 2))
    bad_tools: list[Any] = [
        *({"name": "zz"}, {"name": "a b", "input_schema": {}}, {"name": tools[-1]["name"], "type": "none"}),
        {"name": "zz", "strict": True, "input_schema": NO_SCHEMA},
    ]
    lists.append((("tools",), bad_tools))
    lists.append((("stop_sequences",), ["", 5]))
    body: Body = {"model": "tiny", "messages": messages, "tools": tools, "stop_sequences": ["a"], "max_tokens": 4}
    if draw(st.booleans()):
        body["system"] = blocks(("system",))
    return body, plants(draw, body, lists)


def bench() -> Bench:
    """Of a model that takes images."""
    return Bench(engine_info(max_images=4, input_modalities=("text", "image")))


async def answered(path: str, body: Body) -> tuple[Answered, list[ApiError]]:
    """The answer to a request, and the errors of it that were counted."""
    made = bench()
    errors: list[ApiError] = []
    made.service.on_refused = lambda endpoint, error, key: errors.append(error)
    task = asyncio.ensure_future(ask(application(made), "POST", path, body))
    await until(lambda: bool(made.engine.requests) or task.done())
    if made.engine.requests:
        made.engine.deliver(0, "a", "length")
    return await task, errors


PATHS = {"/v1/chat/completions": chats, "/v1/responses": responses, "/v1/messages": messages_bodies}


@pytest.mark.parametrize("path", PATHS)
def test_a_bad_part_is_named_by_its_place(path: str) -> None:
    make: Callable[[], st.SearchStrategy[tuple[Body, Plant]]] = PATHS[path]

    @given(drawn=make())
    def check(drawn: tuple[Body, Plant]) -> None:
        body, plant = drawn
        valid, errors = asyncio.run(answered(path, body))
        assert (valid.status, errors) == (200, []), valid.body
        refused, errors = asyncio.run(answered(path, planted(body, plant)))
        assert refused.status == 400, refused.body
        (error,) = errors
        place = written(plant.place)
        if path == "/v1/messages":
            # Its errors have no `param`: the message names the field.
            place = re.sub(r"\[(\d+)\]", r".\1", place)
            message = error_body(error)["error"]["message"]
            assert refused.json()["error"]["message"] == message
            assert re.search(rf"(?:^|'){re.escape(place)}\b", message), message
        else:
            assert re.match(rf"{re.escape(place)}(?:[.\[]|$)", refused.json()["error"]["param"] or ""), refused.body

    check()
