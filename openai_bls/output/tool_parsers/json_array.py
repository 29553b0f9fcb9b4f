"""Forced tool calls as a JSON array, `[{"name": ..., "parameters": ...}, ...]`, for engines without structural tags.

It is vLLM's form for `tool_choice` "required"; here a named function is called by an array of one call.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from openai_bls.output.tool_parsers.parser import Syntax
from openai_bls.output.tool_parsers.scanner import CallReader, CallScanner, Reader, after_space, expect

# A noncharacter, in no text: calls have no markers.
_NO_MARKER = "\uffff"
_VALUES = ("enum", "const", "default", "examples")


class ArrayReader(CallScanner):
    """Reads the next call of the array that begins the text.

    It must have a tool's name, as the answer may be other JSON.
    """

    __slots__ = ("_in_list",)

    def __init__(self, names: Set[str], *, in_list: bool = False) -> None:
        self._names: Set[str]
        self._in_list = in_list
        super().__init__(names)
        self.idle = in_list

    def _block(self) -> Reader:
        yield from self._first((yield from after_space()))

    def _first(self, char: str) -> Reader:
        """Read the call and what stands before it, of which the first character has been read."""
        if self._in_list and char == "]":
            return
        expect(char, "," if self._in_list else "[")
        expect((yield from after_space()), "{")
        self.idle = False
        yield from self._members()

    def following(self) -> CallReader:
        """The next call."""
        return ArrayReader(self._names, in_list=True)


def json_array(names: Sequence[str]) -> Syntax:
    """Calls of these functions, from the beginning of the text."""
    known = frozenset(names)
    return Syntax(lambda _: ArrayReader(known), begins=(_NO_MARKER,), at_start=True)


def array_schema(functions: Sequence[tuple[str, Any]], *, one: bool, pointer: str = "#") -> dict[str, Any]:
    """The JSON schema of an array of calls.

    Args:
        functions: names, each with the JSON schema of its parameters.
        one: one call and no more.
        pointer: JSON pointer of the schema within another.
    """
    several = len(functions) > 1
    calls = []
    for at, (name, parameters) in enumerate(functions):
        place = f"{pointer}/items{f'/anyOf/{at}' if several else ''}/properties/parameters"
        properties = {"name": {"const": name}, "parameters": rebased(parameters, place)}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    found = {"type": "array", "items": {"anyOf": calls} if several else calls[0], "minItems": 1}
    return {**found, "maxItems": 1} if one else found


def rebased(schema: Any, pointer: str) -> Any:
    """A JSON schema with its local references adapted to its place at `pointer` in another."""
    if isinstance(schema, list):
        return [rebased(part, pointer) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"{pointer}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else value
        if key in _VALUES
        else rebased(value, pointer)
        for key, value in schema.items()
    }
