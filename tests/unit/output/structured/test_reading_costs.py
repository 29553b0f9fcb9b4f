"""Reading of formats, schemas and grammars as large as they may be: each within seconds of CPU time.

What is compiled has a budget, in a process that is ended; what is read before has none, so that all of it must be about
linear.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.request import ToolGrammar
from openai_bls.output.structured import grammar, input_grammar
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.grammars import gbnf, regex_nodes
from openai_bls.output.structured.libraries import gbnf_lark
from tests.unit.output.structured.driving import EMBEDDED

MOST_S = 5.0
"""CPU time, on a machine that is slow or traced. The shapes below took up to minutes, or ended the process."""
_BYTES = 250_000
_DEFINITION = 64 * 1024
# With the first of its block a range that is just small enough for all its characters to be looked at.
_LAST = chr(0x9C00)


def _schema(schema: Any, **further: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, **further}


def _spread(count: int, make: Callable[[int], Any]) -> list[Any]:
    """As many as fit into a format."""
    found: list[Any] = []
    size = 0
    for at in range(count):
        size += len(json.dumps(one := make(at), separators=(",", ":"))) + 1
        if size > _BYTES - 1000:
            break
        found.append(one)
    return found


def _alternatives_of_values() -> Any:
    return {"oneOf": [{"enum": list(range(at * 200, at * 200 + 200))} for at in range(200)]}


def _alternatives_of_names() -> Any:
    names = [f"{at}" for at in range(230)]
    return {"oneOf": [{"type": "object", "required": names} for _ in range(200)]}


def _alternatives_of_tags() -> Any:
    def tagged(at: int) -> Any:
        properties = {f"{name}": {"enum": [0 if name else at]} for name in range(60, -1, -1)}
        return {"type": "object", "required": list(properties), "properties": properties}

    return {"oneOf": _spread(200, tagged)}


def _constant_of_many_values() -> Any:
    return {"const": [0] * 60_000, "enum": [0] * 60_000}


def _ids_within_ids() -> Any:
    made: Any = {"enum": [0] * 110_000}
    for _ in range(45):
        made = {"id": "x", "items": made}
    return made


def _many_required(style: str) -> Any:
    names = [f"a{at}" for at in range(13_000)]
    schema = {"type": "object", "properties": {name: {} for name in names}, "required": names}
    return _schema({**schema, "additionalProperties": False}, style=style)


def _triggers(excluded: int, length: int) -> Any:
    tags = _spread(1500, lambda at: {"begin": f"<{at}>", "content": {"type": "regex", "pattern": "a"}, "end": ">"})
    excludes = [f"{at:0{length}}" for at in range(excluded)]
    triggers = [tag["begin"] for tag in tags]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "excludes": excludes}


def _many_triggers() -> Any:
    tags = _spread(3500, lambda at: {"begin": f"{at:x}<", "content": {"type": "regex", "pattern": "a"}, "end": ">"})
    return {"type": "triggered_tags", "triggers": [tag["begin"] for tag in tags], "tags": tags}


def _grammars_within_sequences() -> Any:
    rules = "".join(f' "{at}" [a-z{at % 10}]' for at in range(500))
    grammars = [{"type": "grammar", "grammar": f'root ::= "{at}"{rules}'} for at in range(10)]
    made: Any = {"type": "sequence", "elements": [*grammars, _schema({"type": "integer"})]}
    for _ in range(40):
        made = {"type": "sequence", "elements": [made]}
    return made


@pytest.mark.parametrize(
    "make",
    [
        *(_alternatives_of_values, _alternatives_of_names, _alternatives_of_tags),
        *(_constant_of_many_values, _ids_within_ids),
    ],
)
def test_a_schema_is_read_in_little_time(make: Callable[[], Any]) -> None:
    assert _read_s(_schema(make())) < MOST_S


@pytest.mark.parametrize(
    "make",
    [
        *(partial(_many_required, style) for style in ("qwen_xml", "pythonic", "gemma4")),
        *(partial(_triggers, 0, 1), partial(_triggers, 4096, 28), _many_triggers, _grammars_within_sequences),
    ],
)
def test_a_format_is_read_in_little_time(make: Callable[[], Any]) -> None:
    assert _read_s(make()) < MOST_S


def _read_s(format_: Any) -> float:
    begun = time.thread_time()
    with contextlib.suppress(InvalidRequestError):
        grammar(format_, EMBEDDED, param="x")
    return time.thread_time() - begun


def _first(at: int) -> str:
    return chr(0x4E00 + at % 99)


def _filled(head: str, piece: Callable[[int], str], tail: str = "") -> str:
    pieces: list[str] = []
    left = _DEFINITION - len(head) - len(tail)
    for at in range(_DEFINITION):
        left -= len(piece(at))
        if left < 0:
            break
        pieces.append(piece(at))
    return head + "".join(pieces) + tail


_RECURSIVE = '\na: "x" | "(" start ")" | /[a-z\\n]+/\n'
_DEFINITIONS: dict[str, tuple[Literal["lark", "regex"], str]] = {
    "a long sequence": ("lark", _filled("start: a", lambda at: " a", _RECURSIVE)),
    "sequences of sequences": ("lark", _filled("start: a", lambda at: " (a a a)", _RECURSIVE)),
    "optional parts": ("lark", _filled("start: a", lambda at: " a?", _RECURSIVE)),
    "optional characters": ("lark", _filled("start: a /", lambda at: "\\n?", "/" + _RECURSIVE)),
    "many choices": ("lark", _filled("start: a", lambda at: f" | {at % 10} a", _RECURSIVE).replace("| ", '| "x" ')),
    "counts": ("lark", _filled("start: a", lambda at: " a{0,9}", _RECURSIVE)),
    "a count": ("lark", "start: a{1,20000}" + _RECURSIVE),
    "counts of counts": ("lark", "start: ((a{9}){9}){9}" + _RECURSIVE),
    "rules": ("lark", _filled(_RECURSIVE + "start: r0\n", lambda at: f"r{at}: a r{at + 1}\n", "")),
    "sets without case": ("lark", _filled("start: /(?i:", lambda at: f"[{_first(at)}-{_LAST}]", ")/\n")),
    "expressions without case": (
        "lark",
        _filled("start: a", lambda at: f" /[{_first(at)}-{_LAST}]/i", _RECURSIVE),
    ),
    "wide sets": ("lark", _filled("start: a", lambda at: " /[^\\w]/", _RECURSIVE)),
    "wide sets without case": ("lark", _filled("start: a", lambda at: f" /[^\\w{_first(at)}]/i", _RECURSIVE)),
    "a set of classes": ("regex", _filled("[^", lambda at: "\\w", "]")),
    "sets of an expression": ("regex", _filled("(?i)", lambda at: f"[{_first(at)}-{_LAST}]")),
}


@pytest.mark.parametrize("name", _DEFINITIONS)
@pytest.mark.parametrize("in_json", [True, False])
def test_a_tools_grammar_is_read_in_little_time(name: str, in_json: bool) -> None:
    asked = ToolGrammar(*_DEFINITIONS[name], "x")
    begun = time.thread_time()
    with contextlib.suppress(FormatError, RecursionError):
        found = input_grammar.in_json(asked, ["<"]) if in_json else input_grammar.plain(asked, ["<"])
        gbnf_lark.lark(gbnf.parse(found["grammar"]), terminals=True, escaped=in_json)
    assert time.thread_time() - begun < MOST_S


def test_case_is_looked_at_once_for_a_set() -> None:
    assert regex_nodes.parse("(?i)" + r"[^\w]" * 10) == regex_nodes.parse("".join([r"(?i:[^\w])"] * 10))
