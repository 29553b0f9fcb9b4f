"""A format of tool calls: the syntax that a parser reads, and the constraint that enforces it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from openai_bls.core.request import ToolGrammar
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.tool_parsers import custom_content
from openai_bls.output.tool_parsers.json_array import array_schema, json_array, rebased
from openai_bls.output.tool_parsers.parser import Syntax, ToolCallParser, new_call_id

NAME = "{name}"
"""Place of a function's name in a format's texts."""
# OpenAI's meaning of a function without any.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


# Characters of a namespace that stands before a marker without a space, as in `]<]minimax[>[<tool_call>`.
_NAMESPACE = frozenset("[]|｜~&#@%^*")
_CONSTANT = re.compile(r"\bset\s+(\w+)\s*=\s*('[^'\n]*'|\"[^\"\n]*\")\s*-?%\}")
_JOINED = re.compile(r"\b(\w+)\s*[+~]\s*(['\"])|(['\"])\s*[+~]\s*(\w+)\b")
_ADJACENT = re.compile(r"(['\"])\s*[+~]\s*\1")
_PRINTED = re.compile(r"\{\{-?\s*(\w+)\s*-?\}\}")


def written(template: str) -> str:
    """A chat template with its constant variables in place where they are printed, or joined to a string."""
    for _ in range(2):
        # Twice: a constant may be made of another.
        constants = {name: value[1:-1] for name, value in _CONSTANT.findall(template)}
        template = _ADJACENT.sub("", _JOINED.sub(partial(_joined, constants), template))
    return _PRINTED.sub(lambda found: constants.get(found[1], found[0]), template)


def _joined(constants: Mapping[str, str], found: re.Match[str]) -> str:
    before, opening, closing, after = found.groups()
    if before in constants and opening not in constants[before]:
        return opening + constants[before]
    if after in constants and closing not in constants[after]:
        return constants[after] + closing
    return found[0]


class Sign(NamedTuple):
    """Strings in a chat template that identify a format."""

    has: tuple[str, ...]
    """All of these occur, the first, which begins a call, somewhere as more than a part of a longer marker,"""
    lacks: tuple[str, ...] = ()
    """and none of these, which exclude similar formats."""

    def fits(self, template: str) -> bool:
        """True if `template`, as `written` has it, has this sign."""
        found = all(mark in template for mark in self.has) and not any(mark in template for mark in self.lacks)
        return found and _stands_in(self.has[0], template)


def _stands_in(mark: str, template: str) -> bool:
    at = template.find(mark)
    while at > 0 and mark[0] in "<[" and template[at - 1] in _NAMESPACE:
        at = template.find(mark, at + 1)
    return at >= 0


class ToolFormat(NamedTuple):
    """One form of tool calls. `begin`, `end` and so on are as the model's template writes them."""

    name: str
    syntax: Callable[[Sequence[dict[str, Any]]], Syntax]
    """Syntax for a request's tools."""
    begin: str
    """Text before a call's arguments, with `{name}` for the name."""
    end: str
    """Text after the arguments."""
    trigger: str
    """Beginning that the calls of all tools share."""
    signs: tuple[Sign, ...] = ()
    """A chat template with one of these writes this format, unless it has a sign of a format before it."""
    excludes: tuple[str, ...] = ()
    """Other beginnings of a call, excluded from free text where calls are checked; in formats with `only_at_start` with
    `{name}` for the name."""
    separator: str = "\n"
    """Text between two calls."""
    open: str = ""
    """Text before the first call."""
    close: str = ""
    """Text after the last call."""
    special: frozenset[str] = frozenset()
    """Markers that may be special tokens."""
    new_id: Callable[[], str] = new_call_id
    call_id: tuple[str, str] | None = None
    """Regular expression of an id between `begin` and the arguments, and the text after it, with `{name}` for the name
    where that follows the id."""
    style: str = "json"
    """Style of the arguments in a `Format`; "array": the calls are one JSON array, whose schema is the constraint."""
    ends: tuple[str, ...] = ()
    """Texts that end a call wherever they stand in it."""
    only_at_start: tuple[str, ...] = ()
    """Beginnings of a call, with `{name}` for the name, in formats that allow one only at the start of the text. A
    space stands for optional white space. Empty: calls may stand anywhere."""

    def parsers(self, tools: Sequence[dict[str, Any]]) -> Callable[[], ToolCallParser]:
        """Maker of a parser for each answer to a request with these tools, which are read once."""
        return partial(ToolCallParser, self.syntax(tools), self.new_id)

    def constraint(
        self,
        tools: Sequence[dict[str, Any]],
        *,
        at_least_one: bool,
        name: str | None,
        parallel: bool,
        grammars: Mapping[str, ToolGrammar] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """The constraint on the answer, as a `structured.Format`.

        Args:
            tools: OpenAI's tools, at least one.
            at_least_one: nothing but calls; else calls are checked wherever the model begins one in a text.
            name: name of the only tool that may be called, once; None allows all.
            parallel: whether several calls are allowed.
            grammars: grammars of custom tools' input by the tool's name.

        Raises:
            ValueError: there is no tool, or none of this name.
            FormatError: a grammar cannot be held in this format.
        """
        functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
        if not functions:
            raise ValueError("there are no tools" if name is None else f"there is no tool {name!r}")
        one = name is not None or not parallel
        if self.style == "array":
            for function in functions:
                if function["name"] in grammars:
                    self.input_content(grammars[function["name"]])
            schemas = [(function["name"], function.get("parameters") or _NO_PARAMETERS) for function in functions]
            strict = any(function.get("strict") for function in functions)
            return _json_schema(array_schema(schemas, one=one), strict)
        tags = [self._tag(function, grammars.get(function["name"])) for function in functions]
        if at_least_one:
            return self._calls(tags, one)
        if self.only_at_start:
            names = [function["name"] for function in functions]
            begins = {begin.replace(NAME, name) for begin in self.only_at_start for name in names}
            excludes = {exclude.replace(NAME, name) for exclude in self.excludes for name in names}
            others = _text_that_begins_otherwise(sorted(begins), sorted(self.special | excludes))
            return {"type": "or", "elements": [self._calls(tags, one), others]}
        whole = self._calls(tags, one)
        return {
            "type": "triggered_tags",
            "triggers": [self.trigger],
            "tags": [whole] if self.open else tags,
            "excludes": list(self.excludes),
            "stop_after_first": bool(self.open) or one,
        }

    def input_content(self, grammar: ToolGrammar) -> dict[str, Any]:
        """A call's arguments with an input of a grammar, as a `structured.Format`.

        Raises:
            FormatError: the grammar cannot be held in this format.
        """
        if self.style == "array":
            raise FormatError(
                "a grammar of a custom tool's input cannot be held by this server's engine where calls are a JSON array"
            )
        return custom_content.content(grammar, self.style, self.ends)

    def _tag(self, function: dict[str, Any], grammar: ToolGrammar | None) -> dict[str, Any]:
        # Within JSON the name is escaped; names that need it are refused long before.
        begin = self.begin.replace(NAME, json.dumps(function["name"], ensure_ascii=False)[1:-1])
        if grammar is not None:
            content = self.input_content(grammar)
        else:
            content = self.arguments(function.get("parameters") or _NO_PARAMETERS, strict=bool(function.get("strict")))
        if self.call_id is not None:
            pattern, after = self.call_id
            after = after.replace(NAME, function["name"])
            head = [{"type": "regex", "pattern": pattern}, {"type": "const_string", "value": after}]
            content = {"type": "sequence", "elements": [*head, content]}
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}

    def arguments(self, schema: Any, *, strict: bool) -> dict[str, Any]:
        """Arguments that a JSON schema allows, as a `structured.Format`."""
        content = _json_schema(schema, strict)
        return content if self.style in ("json", "array") else {**content, "style": self.style}

    def _calls(self, tags: list[dict[str, Any]], one: bool) -> dict[str, Any]:
        if self.only_at_start and self.open:
            # In one piece, a call's beginning is told from a text that begins alike.
            first = {"type": "or", "elements": _led_by(self.open, tags)}
            further = {"type": "star", "content": {"type": "or", "elements": _led_by(self.separator, tags)}}
            end = {"type": "const_string", "value": self.close}
            return {"type": "sequence", "elements": [first, end] if one else [first, further, end]}
        calls = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": one,
        }
        return {"type": "tag", "begin": self.open, "content": calls, "end": self.close} if self.open else calls


def as_json_array(own: ToolFormat) -> ToolFormat:
    """The form of calls for engines without structural tags, instead of the model's own."""
    return ToolFormat(
        "json_array",
        lambda tools: json_array(names_of(tools)),
        begin='{"name": "{name}", "parameters": ',
        end="}",
        trigger="[",
        separator=", ",
        open="[",
        close="]",
        new_id=own.new_id,
        style="array",
    )


def either(answer: dict[str, Any], calls: dict[str, Any]) -> dict[str, Any] | None:
    """One format, of `answer` or calls as a JSON array; None if they cannot be told apart."""
    schema = answer.get("json_schema")
    if answer["type"] != "json_schema" or not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    parts = (schema, calls["json_schema"])
    alternatives = [rebased(part, f"#/anyOf/{at}") for at, part in enumerate(parts)]
    return _json_schema({"anyOf": alternatives}, bool(answer.get("strict") or calls.get("strict")))


def _json_schema(schema: Any, strict: bool) -> dict[str, Any]:
    """A format of JSON; what is not strict says nothing of it."""
    wanted = {"type": "json_schema", "json_schema": schema}
    return {**wanted, "strict": True} if strict else wanted


def _text_that_begins_otherwise(beginnings: Sequence[str], excludes: Sequence[str]) -> dict[str, Any]:
    """Any text, or none, but one that begins with any of these, space aside.

    Args:
        beginnings: a space in them stands for any white space, or none.
        excludes: strings that the text must not contain.
    """
    atoms = [re.findall(" ?[^ ]", beginning) for beginning in beginnings]
    following: dict[tuple[str, ...], set[str]] = {}
    for one in atoms:
        for place, atom in enumerate(one):
            following.setdefault(tuple(one[:place]), set()).add(atom)
    deviations = []
    for prefix, nexts in following.items():
        spaced = any(atom[0] == " " for atom in nexts)
        others = "".join(_escaped(atom[-1], r"\]^-") for atom in sorted(nexts))
        deviation = r"\s*[^\s" + others + "]" if spaced else f"[^{others}]"
        deviations.append("".join(map(_pattern, prefix)) + deviation)
    first = {"type": "regex", "pattern": "|".join(f"({deviation})" for deviation in deviations)}
    rest = {"type": "any_text", "excludes": list(excludes)}
    return {"type": "optional", "content": {"type": "sequence", "elements": [first, rest]}}


def _pattern(atom: str) -> str:
    return atom.replace(" ", r"\s*")[:-1] + _escaped(atom[-1], r"\^$.*+?()[]{}|")


def _escaped(char: str, special: str) -> str:
    return "\\" + char if char in special else char


def _led_by(text: str, tags: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**tag, "begin": text + tag["begin"]} for tag in tags]


def names_of(tools: Sequence[dict[str, Any]]) -> list[str]:
    """The names of a request's tools."""
    return [tool["function"]["name"] for tool in tools]
