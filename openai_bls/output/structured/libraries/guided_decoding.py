"""Grammars for TensorRT-LLM's guided decoding: what its library enforces exactly; the rest is refused by name.

xgrammar, in the C++ decoder (0.1.18 in TensorRT-LLM 0.21, 0.1.21 in 1.0, 0.1.25 in 1.2) or the Python package (0.1.32
in 1.2.1), reads JSON schemas, regular expressions, GBNF and, in the PyTorch flow from 1.2 on, structural tags. Beyond
its keywords (see `keywords`):

- Clients' expressions end the process up to 0.1.20, by recursion: they are for TensorRT-LLM 1.0 and later.
- It takes seconds to minutes over a repeated part that may be empty, and over many parts that may be left out in a row.
- A set of characters beyond ASCII matches none or all of them up to 0.1.25, and 0.1.21 never comes to an end over one.
- It prints grammars and reads them again with `\\xHH` for U+0080 to U+00FF: a hexadecimal digit behind such a character
  is taken for one of the escape.

llguidance (0.7.29, for checkpoints in the PyTorch flow) reads what the embedded engine's does but for a few keywords. A
structural tag as Lark loops there on markers that are tokens of their own, so it gets none.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from openai_bls.core.engine_types import EngineInfo, Grammar, GrammarDialect
from openai_bls.output.structured import patterns
from openai_bls.output.structured.errors import FormatError, dumped, shown
from openai_bls.output.structured.formats import Format
from openai_bls.output.structured.grammars import bounds, gbnf
from openai_bls.output.structured.grammars.gbnf import CharSet, Literal, Node, Repeat, Rule, Sequence
from openai_bls.output.structured.grammars.pruning import may_be_empty
from openai_bls.output.structured.libraries import gbnf_lark, lark, lark_rules
from openai_bls.output.structured.schemas import schema_nodes

_CLIENTS_EXPRESSIONS_SINCE = (1, 0)
EXCLUDES_SINCE = (1, 2, 1)
_KIND_NAMES = {
    "json_schema": "JSON schemas",
    "regex": "regular expressions",
    "ebnf": "GBNF grammars",
    "structural_tag": "structural tags",
    "lark": "Lark grammars",
}
_WHY = {"structural_tag": " (such as for an answer behind thoughts, which a request may be able to turn off)"}
_TYPED = frozenset(("type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"))
_INTEGER = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
# Repetitions are written out in its grammars.
_MAX_ITEMS = 1_000
# Optional properties of an object: any of them may be the next, which takes time and room for each pair.
_MAX_OPTIONAL = 100
# Parts of a regular expression or a grammar that may be left out, each counted where it is repeated.
_MAX_SKIPPED = 20
_MAX_STATES = 1_000
STYLES = ("qwen_xml",)
"""The styles of JSON written as XML that xgrammar has in all versions that have structural tags."""
# Characters of the strings that free text must not hold, in all.
_MAX_EXCLUDED = 400


class Target(NamedTuple):
    """The grammar library of an engine in a process or package of its own."""

    dialect: GrammarDialect
    backend: str
    kinds: tuple[str, ...]
    version: tuple[int, ...]
    markers: tuple[tuple[str, int], ...] = ()
    """`EngineInfo.marker_token_ids`."""

    @classmethod
    def of(cls, info: EngineInfo) -> Target:
        """The target of an engine."""
        numbers = re.search(r"\d+(?:\.\d+)*", info.version)
        version = tuple(map(int, numbers[0].split("."))) if numbers else ()
        markers = tuple(info.marker_token_ids.items())
        return cls(info.grammar_dialect, info.grammar_backend, info.grammar_kinds, version, markers)


def grammar(wanted: Format, target: Target) -> Grammar:
    """The grammar for a checked format.

    Raises:
        FormatError: the engine's library does not honour all of it.
    """
    if target.backend == "llguidance":
        return _llguidance(wanted, target)
    return _XGrammar(target).grammar(wanted)


def lark_source(source: str, target: Target) -> Grammar:
    """A client's grammar in Lark's form. Raises as `grammar` does."""
    if target.backend != "llguidance":
        raise FormatError("a Lark grammar takes llguidance, which this server's engine does not have: write it as GBNF")
    return Grammar(_kind("lark", target), source)


def _kind(kind: Any, target: Target) -> Any:
    if kind not in target.kinds:
        has = ", ".join(_KIND_NAMES[known] for known in target.kinds) or "none"
        raise FormatError(
            f"it takes {_KIND_NAMES[kind]}{_WHY.get(kind, '')}, which this server's engine does not have: it has {has}"
        )
    return kind


def _llguidance(wanted: Format, target: Target) -> Grammar:
    match wanted["type"]:
        case "json_schema" if "style" not in wanted:
            checked = wanted["json_schema"]
            if schema_nodes.open_names(checked):
                raise _beyond("additionalProperties", " beside 'properties' and where schemas are combined")
            if _has_format_uri(checked):
                raise _beyond("format", ' "uri"')
            return Grammar(_kind("json_schema", target), lark_rules.json_schema(checked))
        case "grammar":
            return Grammar(_kind("lark", target), gbnf_lark.lark(gbnf.parse(wanted["grammar"])))
    pattern = lark.regular(wanted)
    if pattern is None:
        _kind("structural_tag", target)
    return Grammar(_kind("regex", target), str(pattern))


def _has_format_uri(node: Any) -> bool:
    return isinstance(node, dict) and (
        node.get("format") == "uri" or any(map(_has_format_uri, schema_nodes.subschemas(node)))
    )


def _beyond(keyword: str, detail: str = "") -> FormatError:
    return FormatError(f"the JSON schema keyword '{keyword}'{detail} cannot be enforced by this server's engine")


class _XGrammar:
    def __init__(self, target: Target) -> None:
        self._target = target

    def grammar(self, wanted: Format) -> Grammar:
        words = _words(wanted)
        match wanted["type"]:
            case "json_schema" if "style" not in wanted:
                return Grammar(_kind("json_schema", self._target), dumped(_json_schema(wanted["json_schema"])))
            case "regex":
                return Grammar(_kind("regex", self._target), self._regex(wanted["pattern"]))
            case "grammar":
                return Grammar(_kind("ebnf", self._target), self._gbnf(wanted["grammar"]))
        if words is not None:
            return Grammar(_kind("regex", self._target), "|".join(f"({_escaped(word)})" for word in words))
        kind = _kind("structural_tag", self._target)
        return Grammar(kind, dumped({"type": "structural_tag", "format": self._part(wanted)}))

    def _clients_own(self, what: str) -> None:
        if self._target.version < _CLIENTS_EXPRESSIONS_SINCE:
            raise FormatError(f"{what} can end the process of TensorRT-LLM before 1.0: they are not supported there")

    def _regex(self, source: str) -> str:
        self._clients_own("regular expressions")
        return patterns.for_xgrammar(source, _MAX_STATES, _MAX_SKIPPED)

    def _gbnf(self, source: str, *excludes: str) -> str:
        self._clients_own("grammars")
        if excludes:
            raise FormatError(f"grammars whose texts must not hold {shown(excludes[0])} are not supported")
        return _gbnf(gbnf.parse(source))

    def _part(self, node: Format) -> Format:
        """A part of a structural tag."""
        kind = node["type"]
        found = dict(node)
        match kind:
            case "json_schema":
                plain = _json_schema(node["json_schema"], node.get("style"))
                return {"type": "qwen_xml_parameter" if "style" in node else kind, "json_schema": plain}
            case "regex":
                return {"type": kind, "pattern": self._regex(node["pattern"])}
            case "grammar":
                return {"type": kind, "grammar": self._gbnf(node["grammar"], *node.get("excludes", ()))}
            case "star" | "plus" | "repeat":
                raise FormatError(f"formats of the type '{kind}' are not supported by this server's engine")
            case "optional":
                nothing = {"type": "grammar", "grammar": 'root ::= ""'}
                return {"type": "or", "elements": [self._part(node["content"]), nothing]}
        for key in ("value", "begin", "end", "separator"):
            for text in node.get(key, ()) if isinstance(node.get(key), list) else [node.get(key, "")]:
                _check_text(text)
        excluded = [*node.get("excludes", ()), *node.get("triggers", ())]
        if sum(map(len, excluded)) > _MAX_EXCLUDED:
            raise FormatError(f"free text without strings of over {_MAX_EXCLUDED} characters in all is not supported")
        if node.get("excludes") and self._target.version < EXCLUDES_SINCE:
            raise FormatError("free text without certain strings ('excludes') takes TensorRT-LLM 1.2.1")
        for key in ("elements", "tags"):
            if key in node:
                found[key] = [self._part(part) for part in node[key]]
        if "content" in node:
            found["content"] = self._part(node["content"])
        return found


def _json_schema(node: schema_nodes.Schema, style: str | None = None) -> schema_nodes.Schema:
    """A checked schema for xgrammar with all defaults written out, since xgrammar's defaults are narrower.

    Args:
        node: the schema.
        style: style of JSON written as XML.

    Raises:
        FormatError: a keyword would not be honoured.
    """
    plain = {key: value for key, value in node.items() if key != "$defs"}
    if style not in (None, *STYLES):
        raise FormatError(f"JSON in the style '{style}' cannot be enforced by this server's engine")
    if style is not None and plain.get("type", "object") != "object":
        raise FormatError("JSON that is written as XML is an object")
    definitions = {name: _honoured(part) for name, part in node.get("$defs", {}).items()}
    found = _honoured(plain)
    return {**found, "$defs": definitions} if definitions else found


def _honoured(node: Any) -> Any:
    if node is True:
        return node
    if node in (False, {"enum": []}):
        raise FormatError("the JSON schema 'false' cannot be enforced by this server's engine: leave it out")
    alone = next((key for key in ("$ref", "anyOf", "enum") if key in node), None)
    if alone is not None:
        for key in node:
            if key != alone:
                raise _beyond(key, f" beside '{alone}'")
        if alone == "enum":
            _check_values(node["enum"])
        return {"anyOf": [_honoured(part) for part in node["anyOf"]]} if alone == "anyOf" else dict(node)
    _check_typed(node)
    found = dict(node)
    for key in _INTEGER & found.keys():
        found[key] = int(found[key])
    if "object" in node.get("type", ()):
        if "properties" in node:
            found["properties"] = {name: _honoured(part) for name, part in node["properties"].items()}
        found["additionalProperties"] = node.get("additionalProperties") is not False and _honoured(
            node.get("additionalProperties", True)
        )
    if "array" in node.get("type", ()):
        found["items"] = _honoured(node.get("items", True))
    return found


def _check_typed(node: schema_nodes.Schema) -> None:
    """Refuse what is not honoured of the keywords for types."""
    types = node.get("type", [])
    integers = "integer" in types and "number" not in types
    for key in node:
        if key not in _TYPED and not (integers and key in _INTEGER):
            raise _beyond(key)
        if not types:
            raise _beyond(key, " without 'type'")
    low = max(node.get("minimum", -math.inf), node.get("exclusiveMinimum", -math.inf) + 1)
    if low > min(node.get("maximum", math.inf), node.get("exclusiveMaximum", math.inf) - 1):
        raise FormatError("no integer lies between the bounds")
    declared, required = node.get("properties", {}), node.get("required", ())
    for name in declared:
        _check_text(dumped(name))
    if any(name not in declared for name in required):
        raise _beyond("required", " of what 'properties' does not declare")
    if len(declared) - len(required) > _MAX_OPTIONAL:
        raise _beyond("properties", f" with over {_MAX_OPTIONAL} optional ones")
    if declared and node.get("additionalProperties", True) is not False:
        raise _beyond("additionalProperties", " beside 'properties' and where schemas are combined")
    if max(node.get("minItems", 0), node.get("maxItems", 0)) > _MAX_ITEMS:
        raise _beyond("maxItems", f" above {_MAX_ITEMS}")


def _check_values(values: Any) -> None:
    """Refuse constants that xgrammar does not write exactly: only integers are."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, dict | list):
            if isinstance(value, dict):
                _check_values(list(value))
            _check_values(value)
        elif isinstance(value, float):
            raise _beyond("enum", f" of {shown(value)}, which is no integer,")
        elif isinstance(value, str):
            _check_text(dumped(value))


def _check_text(text: str) -> None:
    if patterns.SPLIT_ESCAPE.search(text):
        raise FormatError(
            f"{shown(text)} cannot be enforced by this server's engine: a hexadecimal digit (0-9, a-f) follows a "
            "character of U+0080 to U+00FF"
        )


def _words(wanted: Format) -> list[str] | None:
    """The strings that a format is a choice of; None if it is no choice."""
    parts = wanted["elements"] if wanted["type"] == "or" else [wanted]
    if any(part["type"] != "const_string" for part in parts):
        return None
    words = [part["value"] for part in parts]
    for word in words:
        _check_text(word)
        if "\x00" in word:
            raise FormatError("the character NUL cannot be enforced by this server's engine")
    return words


def _escaped(word: str) -> str:
    """A regular expression for `word`. re.escape also escapes a space, for one, which not every library accepts."""
    text = re.sub(r"[\\^$.|?*+()\[\]{}/-]", r"\\\g<0>", word)
    return text.replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\r")


def _gbnf(rules: dict[str, Node]) -> str:
    """The grammar as GBNF, in the subset that xgrammar reads correctly."""
    empty = gbnf.matchable(rules, empty=True)
    first = {name: set(_first(node, empty)) for name, node in rules.items()}
    for group in bounds.circles(first):
        if len(group) > 1 or group[0] in first[group[0]]:
            raise FormatError(f"rule {group[0]!r} begins with itself, which this server's engine does not support")
    if sum(_skipped(node, empty) for node in rules.values()) > _MAX_SKIPPED:
        raise FormatError(
            f"grammars with over {_MAX_SKIPPED} parts that may be left out are not supported by this server's engine"
        )
    return "\n".join(f"{name} ::= {_written(node)}" for name, node in rules.items())


def _written(node: Node) -> str:
    match node:
        case Literal(text):
            _check_text(text)
            return '"' + "".join(_char(ord(char)) for char in text) + '"'
        case CharSet(ranges, negated):
            if any(last > 0x7F for _, last in ranges):
                raise FormatError("sets of characters beyond ASCII cannot be enforced by this server's engine")
            parts = (_char(first) + (f"-{_char(last)}" if last > first else "") for first, last in ranges)
            return f"[{'^' if negated else ''}{''.join(parts)}]"
        case Rule(name):
            return name
        case Sequence(parts, choice):
            return (" | " if choice else " ").join(f"({_written(part)})" for part in parts) or '""'
        case Repeat(part, least, most):
            return f"({_written(part)}){gbnf.count(least, most)}"


def _char(point: int) -> str:
    text = chr(point)
    return text if text.isascii() and text.isalnum() else f"\\U{point:08x}"


def _first(node: Node, empty: set[str]) -> list[str]:
    """The rules that may be tried before any character is read."""
    match node:
        case Rule(name):
            return [name]
        case Sequence(parts, choice):
            found = []
            for part in parts:
                found += _first(part, empty)
                if not choice and not may_be_empty(part, empty):
                    break
            return found
        case Repeat(part):
            return _first(part, empty)
    return []


def _skipped(node: Node, empty: set[str]) -> int:
    """Parts that may be left out. Raises if a part that may be empty is repeated."""
    match node:
        case Sequence(parts):
            return sum(_skipped(part, empty) for part in parts)
        case Repeat(part, least, most):
            if most != 1 and may_be_empty(part, empty):
                raise FormatError("a repeated part that may be empty is not supported by this server's engine")
            return _skipped(part, empty) * max(least, most or 1) + (not least)
    return 0
