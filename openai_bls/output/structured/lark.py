"""Formats as Lark grammars for llguidance.

llguidance reads with a lexer that takes the longest match. So everything regular becomes one terminal, in which nothing
is ambiguous; JSON schemas are rules of their own (`%json`); free text that must end somewhere is a lazy terminal.
"""

from __future__ import annotations

from typing import Any

from openai_bls.output.structured import gbnf, patterns, schema
from openai_bls.output.structured.errors import FormatError, dumped
from openai_bls.output.structured.formats import Format
from openai_bls.output.structured.gbnf import slashed
from openai_bls.output.structured.patterns import literal
from openai_bls.output.structured.schema import Schema

_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options of llguidance for JSON as `json.dumps` writes it."""

_TEXT = r"(?s:.*)"
_SPACE = r"[\t\n\r ]"
_PARAMETER_END = "</parameter>"


def json_schema(checked: Schema) -> str:
    """A checked schema as llguidance takes it."""
    options = dict(_JSON_OPTIONS)
    if schema.open_names(checked):
        # Else a free name may be a declared one with an escape: {"\u0061": ...}.
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return dumped({**checked, "x-guidance": options})


def lark(wanted: Format) -> str:
    """A checked format as a Lark grammar.

    Raises:
        FormatError: it has what llguidance cannot do: free text with no mark of its own to end it, for one.
    """
    renderer = _Renderer()
    start = renderer.render(wanted, last=True)
    return "\n".join(["%llguidance {}", f"start: {start}", *renderer.lines])


class _Renderer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0

    def render(self, node: Format, *, last: bool) -> str:  # noqa: PLR0911
        """An expression for a rule's body; `last`: the output ends with it."""
        pattern = regular(node)
        if pattern is not None:
            return slashed(pattern)
        match node["type"]:
            case "json_schema" if "style" in node:
                return self._parameters(node["json_schema"], node["json_schema"].get("$defs", {}))
            case "json_schema":
                return self._rule(f"%json {json_schema(node['json_schema'])}")
            case "grammar":
                name = self._name("grammar")
                self.lines.append(gbnf.lark(gbnf.parse(node["grammar"]), name))
                return name
            case "any_text":
                if not last:
                    raise FormatError("free text ('any_text') must come last, or in a tag whose 'end' ends it")
                return self._terminal(_without(node.get("excludes", [])))
            case "sequence":
                *before, final = node["elements"]
                parts = [self.render(part, last=False) for part in before]
                return " ".join([*parts, self.render(final, last=last)])
            case "or":
                return _any(self.render(part, last=last) for part in node["elements"])
            case "optional":
                return f"({self.render(node['content'], last=last)})?"
            case "star" | "plus" | "repeat":
                return f"({self.render(node['content'], last=False)}){_sign(node)}"
            case "tag":
                return self._tag(node, "")
            case "triggered_tags":
                return self._triggered_tags(node, last)
        return self._tags_with_separator(node)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}_{self._names}"

    def _rule(self, body: str) -> str:
        name = self._name("part")
        self.lines.append(f"{name}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = self._name("TEXT")
        self.lines.append(f"{name}: {body}")
        return name

    def _up_to(self, ends: list[str], excludes: list[str]) -> str:
        """Any text without `excludes`, up to the first of `ends`."""
        text = self._terminal(f"({_without(excludes)}) {slashed(_one_of(ends))}")
        name = self._name("part")
        self.lines.append(f"{name}[lazy]: {text}")
        return name

    def _tag(self, node: Format, trigger: str) -> str:
        """A tag, without the part of its beginning that the trigger has matched."""
        ends = _ends(node)
        begin = node["begin"].removeprefix(trigger)
        parts = [slashed(literal(begin))] if begin else []
        content = node["content"]
        if content["type"] == "any_text":
            return " ".join([*parts, self._up_to(ends, content.get("excludes", []))])
        parts.append(self.render(content, last=False))
        return " ".join([*parts, slashed(_one_of(ends))] if any(ends) else parts)

    def _triggered_tags(self, node: Format, last: bool) -> str:
        once, needed = node.get("stop_after_first", False), node.get("at_least_one", False)
        if not last:
            raise FormatError("free text with 'triggered_tags' must come last")
        excludes = node.get("excludes", [])
        # As in xgrammar, nothing comes before a tag that must come, and tags follow each other as they like.
        first, further = [], []
        for trigger in node["triggers"]:
            tags = [tag for tag in node["tags"] if tag["begin"].startswith(trigger)]
            if not tags:
                continue
            bodies = self._rule(_any(self._tag(tag, trigger) or '""' for tag in tags))
            first.append(f"{slashed(literal(trigger))} {bodies}")
            further.append(f"{self._up_to([trigger], excludes)} {bodies}")
        rest = self._terminal(_without([*excludes, *node["triggers"]]))
        one = _any(further)
        if needed:
            return _any(first) if once else f"{_any(first)} {one}* {rest}"
        return f"({one} | {rest})" if once else f"{one}* {rest}"

    def _tags_with_separator(self, node: Format) -> str:
        tag = self._rule(_any(self._tag(tag, "") for tag in node["tags"]))
        separator = slashed(literal(node["separator"]))
        several = tag if node.get("stop_after_first") else f"{tag} ({separator} {tag})*"
        return several if node.get("at_least_one") else f"({several})?"

    # JSON in the style `qwen_xml`: an object is a row of <parameter=name> tags, in which a string stands as it is, and
    # anything else as JSON. One white space character may stand wherever there is no text.

    def _parameters(self, node: Schema, definitions: Schema) -> str:
        node = _resolved(node, definitions)
        if "anyOf" in node and not set(node) - {"anyOf", "$defs"}:
            return _any(self._parameters(part, definitions) for part in node["anyOf"])
        _only(node, {"$defs", "type", "properties", "required", "additionalProperties"})
        declared = node.get("properties", {})
        if node.get("type", "object") != "object":
            raise FormatError("JSON that is written as XML is an object")
        required = node.get("required", [])
        if not set(required) <= set(declared):
            raise FormatError("'required' names what 'properties' does not: it cannot be enforced in JSON as XML")
        space = f"{slashed(_SPACE)}?"
        parts = [space]
        for name, part in declared.items():
            begin = slashed(literal(f"<parameter={name}>"))
            tag = f"({begin} {self._value(part, definitions)} {space})"
            parts.append(tag if name in required else f"{tag}?")
        others = node.get("additionalProperties", True)
        if others is not False:
            body = "<parameter=[A-Za-z_][A-Za-z0-9_]*>"
            names = _one_of([f"<parameter={name}>" for name in declared])
            begin = self._terminal(slashed(body) + (f" & ~{slashed(names)}" if declared else ""))
            parts.append(f"({begin} {self._value({} if others is True else others, definitions)} {space})*")
        return self._rule(" ".join(parts))

    def _value(self, node: Schema, definitions: Schema) -> str:
        """A parameter's value and the end of its tag."""
        parts = self._values(node, definitions)
        if None in parts:
            return self._up_to([_PARAMETER_END], [])
        space = f"{slashed(_SPACE)}?"
        return f"{space} {_any(map(str, parts))} {space} {slashed(literal(_PARAMETER_END))}"

    def _values(self, node: Schema, definitions: Schema) -> list[str | None]:
        """Expressions for a parameter's values; None for any text."""
        node = _resolved(node, definitions)
        if "enum" in node:
            _only(node, {"enum"})
            texts = [value if isinstance(value, str) else dumped(value) for value in node["enum"]]
            return [slashed(_one_of(texts))]
        if set(node) == {"anyOf"}:
            return [found for part in node["anyOf"] for found in self._values(part, definitions)]
        types = node.get("type", ["string"])
        if types == "string" or "string" in types:
            # A string is anything, and so is whatever else may come.
            _only(node, {"type"})
            return [None]
        found = {**node, "$defs": definitions} if definitions else node
        return [self._rule(f"%json {json_schema(found)}")]


def _resolved(node: Schema, definitions: Schema) -> Schema:
    while set(node) - {"$defs"} == {"$ref"}:
        node = definitions[node["$ref"].removeprefix(schema.PREFIX)]
    return node


def _only(node: Schema, known: set[str]) -> None:
    beyond = next((key for key in node if key not in known), None)
    if beyond is not None:
        raise FormatError(f"the JSON schema keyword '{beyond}' cannot be enforced in JSON that is written as XML")


def _any(parts: Any) -> str:
    return f"({' | '.join(parts)})"


def _one_of(texts: list[str]) -> str:
    return f"(?:{'|'.join(map(literal, texts))})"


def _ends(node: Format) -> list[str]:
    return node["end"] if isinstance(node["end"], list) else [node["end"]]


def _without(excluded: list[str]) -> str:
    """A terminal: any text that holds none of these."""
    if not excluded:
        return slashed(_TEXT)
    return f"{slashed(_TEXT)} & ~{slashed(_TEXT + _one_of(excluded) + _TEXT)}"


def regular(node: Format) -> str | None:  # noqa: PLR0911
    """The regular expression that a format amounts to, if it is made of nothing but strings and expressions."""
    match node["type"]:
        case "const_string":
            return literal(node["value"])
        case "regex":
            return f"(?:{patterns.full(node['pattern'])})"
        case "grammar":
            return gbnf.regex(node["grammar"])
        case "sequence" | "or":
            parts = [regular(part) for part in node["elements"]]
            if any(part is None for part in parts):
                return None
            return "".join(map(str, parts)) if node["type"] == "sequence" else f"(?:{'|'.join(map(str, parts))})"
        case "optional" | "star" | "plus" | "repeat":
            part = regular(node["content"])
            return None if part is None else f"(?:{part}){_sign(node)}"
        case "tag":
            part = regular(node["content"])
            return None if part is None else f"{literal(node['begin'])}{part}{_one_of(_ends(node))}"
    return None


def _sign(node: Format) -> str:
    signs = {"optional": "?", "star": "*", "plus": "+"}
    if node["type"] in signs:
        return signs[node["type"]]
    return gbnf.count(node["min"], None if node["max"] == -1 else node["max"])
