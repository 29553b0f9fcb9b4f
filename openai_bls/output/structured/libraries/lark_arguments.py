"""Arguments of tool calls that are not written as JSON, as rules of a Lark grammar.

An object becomes a row of tags in the styles of XML, `<parameter=city>Paris</parameter>` for one, in which a string
stands as it is and anything else as JSON. One white space character may stand wherever there is no text. In the style
`pythonic` it becomes the keyword arguments of a Python call, `city="Paris", days=2`, whose values are JSON but for
`True`, `False` and `None`. In the styles of Gemma, `city:<|"|>Paris<|"|>,days:2`, strings stand between delimiters at
any depth, and names without quotes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Set
from typing import Any, NamedTuple

from openai_bls.output.structured.errors import FormatError, dumped, shown
from openai_bls.output.structured.grammars import gbnf
from openai_bls.output.structured.grammars.gbnf import slashed
from openai_bls.output.structured.libraries.lark_rules import Rules, any_of, one_of
from openai_bls.output.structured.patterns import literal
from openai_bls.output.structured.schemas import keywords, schema_nodes
from openai_bls.output.structured.schemas.schema_nodes import Schema

_SPACE = slashed(r"[\t\n\r ]?")
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_PYTHON_NAME = re.compile(r"[^\s=()\[\]{}<>'\",:;]+")
_GEMMA_NAME = re.compile(r"[^\s{}\[\]<>,:\"]+")
_TYPES = ["string", "number", "boolean", "null", "object", "array"]
_OF_ANY_TYPE = {"$defs", "type", *(key for of_type in keywords.OF_TYPE.values() for key in of_type)}
_OBJECT = {"$defs", "type", "properties", "required", "additionalProperties"}


class _Style(NamedTuple):
    """Tags of one argument."""

    before: str
    """Text before its name."""
    after: str
    """Regular expression for the text after it."""
    end: str
    """Text after its value, with `%s` for the name where that is repeated: only declared arguments are allowed then."""
    types: tuple[str, ...] = ()
    """What completes `after` where the value is a string, and where it is not; empty: values do not say it."""
    opens: str = ""
    """Text between `after` and the value."""
    excludes: tuple[str, ...] = ()
    """What else ends a value for the call's reader."""


_STYLES = {
    "qwen_xml": _Style("<parameter=", ">", "</parameter>", excludes=("\n<parameter=", "\n</function>")),
    "glm_xml": _Style("<arg_key>", "</arg_key>\n?<arg_value>", "</arg_value>"),
    "hy_xml": _Style(
        "<arg_key:opensource>", "</arg_key:opensource>\n?<arg_value:opensource>", "</arg_value:opensource>"
    ),
    # What begins with a CDATA section but does not end with it would not be read.
    "minicpm_xml": _Style('<param name="', '">', "</param>", excludes=("<![CDATA[",)),
    "minimax_xml": _Style('<parameter name="', '">', "</parameter>"),
    "deepseek_xml": _Style(
        '<｜DSML｜parameter name="', '" string="%s">', "</｜DSML｜parameter>", types=("true", "false")
    ),
    "kimi_k3": _Style(
        '<|open|>argument key="',
        '" type="%s"',
        "<|close|>argument<|sep|>",
        types=("string", "(?:number|boolean|null|object|array)"),
        opens="<|sep|>",
    ),
    "minimax_m3": _Style("]<]minimax[>[<", ">", "]<]minimax[>[</%s>"),
}
_QUOTES = {"gemma4": '<|"|>', "functiongemma": "<escape>"}
"""Delimiters of strings in the styles of Gemma."""
_PYTHONIC = "pythonic"
_PYTHON_LITERALS = {True: "True", False: "False", None: "None"}
_PYTHON_TYPES = {"boolean": "True|False", "null": "None"}
STYLES = (*_STYLES, *_QUOTES, _PYTHONIC)
"""The styles of arguments, besides JSON."""


class ArgumentRules(Rules):
    """Rules for arguments in one of the styles."""

    def arguments(self, node: Schema, style: str) -> str:
        """An expression for arguments that a checked schema allows.

        Raises:
            FormatError: it has what cannot be enforced in this style.
        """
        definitions = node.get("$defs", {})
        if style == _PYTHONIC:
            return _PythonArguments(self, definitions).object(node)
        if style in _QUOTES:
            return _GemmaArguments(self, _QUOTES[style], definitions).object(node)
        return _XmlArguments(self, _STYLES[style], definitions).object(node)


class _Arguments(ABC):
    _written = "JSON that is written as XML"

    def __init__(self, rules: Rules, definitions: Schema) -> None:
        self._rules = rules
        self._definitions = definitions

    def object(self, node: Schema) -> str:
        """An expression for an object."""
        node = self._resolved(node)
        if "anyOf" in node and not set(node) - {"anyOf", "$defs"}:
            return any_of(self.object(part) for part in node["anyOf"])
        self._only(node, _OBJECT)
        declared = node.get("properties", {})
        if node.get("type", "object") != "object":
            raise FormatError(f"{self._written} must be an object")
        required = frozenset(node.get("required", ()))
        if not required <= set(declared):
            raise FormatError(f"'required' names what 'properties' does not: it cannot be enforced in {self._written}")
        others = node.get("additionalProperties", True)
        return self._members(declared, required, {} if others is True else others)

    @abstractmethod
    def _members(self, declared: dict[str, Schema], required: Set[str], others: Any) -> str:
        """An expression for the members of an object; `others` is False or the schema of undeclared members."""

    def _json(self, node: Schema) -> str:
        return self._rules.json({**node, "$defs": self._definitions} if self._definitions else node)

    def _resolved(self, node: Schema) -> Schema:
        while set(node) - {"$defs"} == {"$ref"}:
            node = self._definitions[node["$ref"].removeprefix(schema_nodes.PREFIX)]
        return node

    def _only(self, node: Schema, known: set[str]) -> None:
        beyond = next((key for key in node if key not in known), None)
        if beyond is not None:
            raise FormatError(f"the JSON schema keyword '{beyond}' cannot be enforced in {self._written}")


class _CommaArguments(_Arguments):
    """Members with a comma between them."""

    _comma: str
    _colon: str
    """Text between a name and its value."""
    _names: re.Pattern[str]
    """Names that may stand without quotes."""

    @abstractmethod
    def _value(self, node: Any) -> str:
        """An expression for a value that a schema allows."""

    def _members(self, declared: dict[str, Schema], required: Set[str], others: Any) -> str:
        comma = slashed(literal(self._comma))
        # What may follow the first arguments, and what may follow none.
        more = first = '""'
        if others is not False:
            taken = slashed(one_of([f"{name}{self._colon}" for name in declared]))
            known = f" & ~{taken}" if declared else ""
            other = self._rules.rule(
                f"{self._rules.terminal(slashed(f'{_NAME}{self._colon}') + known)} {self._value(others)}"
            )
            more, first = f"({comma} {other})*", f"({other} ({comma} {other})*)?"
        for name, part in reversed(declared.items()):
            if not self._names.fullmatch(name):
                raise FormatError(f"a property named {shown(name)} cannot be enforced in {self._written}")
            after = self._rules.rule(more)
            argument = self._rules.rule(f"{slashed(literal(f'{name}{self._colon}'))} {self._value(part)} {after}")
            needed = name in required
            more = f"{comma} {argument}" if needed else any_of([f"{comma} {argument}", after])
            first = argument if needed else any_of([argument, self._rules.rule(first)])
        return self._rules.rule(first)


class _PythonArguments(_CommaArguments):
    _written = "arguments of a Python call"
    _comma = ", "
    _colon = "="
    _names = _PYTHON_NAME

    def _value(self, node: Schema) -> str:
        node = self._resolved(node)
        if "enum" in node:
            self._only(node, {"enum"})
            return slashed(one_of(map(_python, node["enum"])))
        if set(node) == {"anyOf"}:
            return any_of(map(self._value, node["anyOf"]))
        types = node.get("type", [])
        types = [types] if isinstance(types, str) else types
        words = [f"/{word}/" for name, word in _PYTHON_TYPES.items() if name in types]
        rest = [name for name in types if name not in _PYTHON_TYPES]
        if not words:
            return self._json(node)
        return any_of([*words, *([self._json({**node, "type": rest})] if rest else [])])


class _GemmaArguments(_CommaArguments):
    _written = "arguments in Gemma's form"
    _comma = ","
    _colon = ":"
    _names = _GEMMA_NAME

    def __init__(self, rules: Rules, quote: str, definitions: Schema) -> None:
        super().__init__(rules, definitions)
        self._quote = quote
        # Rules of definitions, which may hold themselves, and of any value.
        self._defined: dict[str, str] = {}

    def _value(self, node: Any) -> str:
        if node is True or not set(node) - {"$defs"}:
            node = {"type": _TYPES}
        if set(node) - {"$defs"} == {"$ref"}:
            return self._named(node["$ref"], self._definitions[node["$ref"].removeprefix(schema_nodes.PREFIX)])
        if "enum" in node:
            self._only(node, {"enum"})
            return any_of(map(self._constant, node["enum"]))
        if set(node) == {"anyOf"}:
            return any_of(map(self._value, node["anyOf"]))
        self._only(node, _OF_ANY_TYPE)
        types = node.get("type", _TYPES)
        types = [types] if isinstance(types, str) else types
        if len(types) > 1:
            if "object" in types and set(node) == {"type"}:
                return self._named(" ".join(sorted(types)), node, types)
            return any_of(self._value({**_part_of(node, name), "type": name}) for name in types)
        return self._of_type(node, types[0])

    def _named(self, name: str, node: Schema, types: list[str] | None = None) -> str:
        if name not in self._defined:
            self._defined[name] = rule = self._rules.name("part")
            body = self._value(node) if types is None else any_of(self._of_type({"type": one}, one) for one in types)
            self._rules.lines.append(f"{rule}: {body}")
        return self._defined[name]

    def _of_type(self, node: Schema, name: str) -> str:
        if name == "string":
            self._only(node, {"type"})
            return f"{self._rules.text(self._quote)} {self._rules.up_to([self._quote])}"
        if name == "object":
            return f"{slashed(literal('{'))} {self.object(node)} {slashed(literal('}'))}"
        if name == "array":
            return self._array(node)
        return self._json(node)

    def _array(self, node: Schema) -> str:
        self._only(node, {"type", "items", "minItems", "maxItems"})
        least, most = node.get("minItems", 0), node.get("maxItems")
        if most == 0:
            return slashed(literal("[]"))
        item = self._rules.rule(self._value(node.get("items", True)))
        further = f"({slashed(literal(','))} {item}){gbnf.count(max(least - 1, 0), None if most is None else most - 1)}"
        items = f"{item} {further}"
        return f"{slashed(literal('['))} {items if least else f'({items})?'} {slashed(literal(']'))}"

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            if self._quote in value:
                raise FormatError(f"a string with {shown(self._quote)} cannot be enforced in {self._written}")
            return self._rules.text(f"{self._quote}{value}{self._quote}")
        if isinstance(value, dict | list):
            raise FormatError(f"an object or array as a constant cannot be enforced in {self._written}")
        return slashed(literal(dumped(value)))


class _XmlArguments(_Arguments):
    def __init__(self, rules: Rules, style: _Style, definitions: Schema) -> None:
        super().__init__(rules, definitions)
        self._style = style

    def _members(self, declared: dict[str, Schema], required: Set[str], others: Any) -> str:
        # Where there are no arguments, DeepSeek's template leaves a blank line.
        parts = [_SPACE, _SPACE] if self._style.types else [_SPACE]
        for name, part in declared.items():
            tag = f"({self._argument([name], part, declared=True)} {_SPACE})"
            parts.append(tag if name in required else f"{tag}?")
        if others is not False and "%s" not in self._style.end:
            tag = self._argument(list(declared), others, declared=False)
            parts.append(f"({tag} {_SPACE})*")
        return self._rules.rule(" ".join(parts))

    def _argument(self, names: list[str], node: Schema, *, declared: bool) -> str:
        """One argument: the only one of `names`, or any but `names`."""
        style = self._style
        values = list(self._values(node))
        texts = [value for kind, value in values if kind == "string"]
        end = style.end.replace("%s", names[0]) if declared else style.end
        if not style.types:
            begin = self._begin(names, style.after, declared=declared)
            if None in texts:
                # A string is anything, and so is whatever else may come.
                return f"{begin} {self._rules.up_to([end], style.excludes)}"
            return f"{begin} {_SPACE} {any_of(self._expressions(values))} {_SPACE} {self._rules.text(end)}"
        alternatives = []
        if texts:
            begin = self._typed(names, style.types[0], declared=declared)
            known = self._rules.texts([f"{text}{end}" for text in texts if text is not None])
            alternatives.append(f"{begin} {self._rules.up_to([end]) if None in texts else known}")
        if len(texts) < len(values):
            begin = self._typed(names, style.types[1], declared=declared)
            written = any_of(self._expressions([value for value in values if value[0] == "json"]))
            alternatives.append(f"{begin} {written} {self._rules.text(end)}")
        return any_of(alternatives)

    def _typed(self, names: list[str], kind: str, *, declared: bool) -> str:
        begin = self._begin(names, self._style.after % kind, declared=declared)
        return f"{begin} {self._rules.text(self._style.opens)}" if self._style.opens else begin

    def _begin(self, names: list[str], after: str, *, declared: bool) -> str:
        if self._rules.has_marker(self._style.before + after):
            return self._begin_by_markers(names, after, declared=declared)
        before = literal(self._style.before)
        known = slashed(f"{before}{one_of(names)}{after}")
        if declared:
            return known
        return self._rules.terminal(slashed(f"{before}{_NAME}{after}") + (f" & ~{known}" if names else ""))

    def _begin_by_markers(self, names: list[str], after: str, *, declared: bool) -> str:
        known = slashed(one_of(names))
        if not declared:
            known = self._rules.terminal(slashed(_NAME) + (f" & ~{known}" if names else ""))
        return f"{self._rules.text(self._style.before)} {known} {self._rules.pattern(after)}"

    def _expressions(self, values: list[tuple[str, Any]]) -> list[str]:
        texts = [value for kind, value in values if kind == "string"]
        found = [slashed(one_of(texts))] if texts else []
        for _, value in values:
            if isinstance(value, list):
                found.append(slashed(one_of(map(dumped, value))))
            elif isinstance(value, dict):
                found.append(self._json(value))
        return found

    def _values(self, node: Schema) -> list[tuple[str, Any]]:
        """What an argument may be: "string" and the string, None for any; "json" and a list of values or a schema."""
        node = self._resolved(node)
        if "enum" in node:
            self._only(node, {"enum"})
            others = [value for value in node["enum"] if not isinstance(value, str)]
            found: list[tuple[str, Any]] = [("string", value) for value in node["enum"] if isinstance(value, str)]
            return [*found, ("json", others)] if others else found
        if set(node) == {"anyOf"}:
            return [value for part in node["anyOf"] for value in self._values(part)]
        types = node.get("type", _TYPES)
        types = [types] if isinstance(types, str) else types
        if "string" not in types:
            return [("json", node)]
        self._only(node, {"type"})
        rest = [name for name in types if name != "string"]
        return [("string", None), *([("json", {"type": rest})] if rest else [])]


def _python(value: Any) -> str:
    return _PYTHON_LITERALS[value] if value is None or isinstance(value, bool) else dumped(value)


def _part_of(node: Schema, name: str) -> Schema:
    """The keywords of a node of several types that say something of one."""
    of_type = keywords.OF_TYPE.get("number" if name == "integer" else name, ())
    return {key: value for key, value in node.items() if key in of_type}
