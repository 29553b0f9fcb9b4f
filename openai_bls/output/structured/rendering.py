r"""Formats as Lark grammars for llguidance, for what xgrammar would not honour.

llguidance reads with a lexer that takes the longest match. So everything regular becomes one terminal, in which nothing
is ambiguous; JSON schemas are rules of their own (`%json`); free text that must end somewhere is a lazy terminal.
"""

from __future__ import annotations

import json
from typing import Any

from openai_bls.output.structured import ebnf, ebnf_forms
from openai_bls.output.structured.ebnf_forms import literal, slashed
from openai_bls.output.structured.errors import FormatError

Format = dict[str, Any]

JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Of llguidance: JSON as `json.dumps` writes it, which is what xgrammar is told, too."""

_TEXT = r"(?s:.*)"


def json_schema(schema: Any) -> str:
    """A schema in normal form as llguidance takes it."""
    return json.dumps({**schema, "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def lark(wanted: Format) -> str:
    """A checked format as a Lark grammar.

    Raises:
        FormatError: it has what llguidance cannot do: free text with no mark of its own to end it, a GBNF grammar.
    """
    renderer = _Renderer()
    start = renderer.render(wanted, last=True)
    return "\n".join(["%llguidance {}", f"start: {start}", *renderer.lines])


class _Renderer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0

    def render(self, node: Format, *, last: bool) -> str:  # noqa: PLR0911
        """An expression for a rule's body.

        Args:
            node: the format.
            last: whether the output ends with it.
        """
        pattern = regular(node)
        if pattern is not None:
            return slashed(pattern)
        match node["type"]:
            case "json_schema":
                return self._rule(f"%json {json_schema(node['json_schema'])}")
            case "any_text":
                return self._text(node, last)
            case "sequence":
                *before, final = node["elements"]
                parts = [self.render(part, last=False) for part in before]
                return " ".join([*parts, self.render(final, last=last)])
            case "or":
                return self._any(self.render(part, last=last) for part in node["elements"])
            case "optional":
                return f"({self.render(node['content'], last=last)})?"
            case "star":
                return f"({self.render(node['content'], last=False)})*"
            case "plus":
                return f"({self.render(node['content'], last=False)})+"
            case "repeat":
                return f"({self.render(node['content'], last=False)}){_counted(node)}"
            case "tag":
                return self._tag(node, "")
            case "triggered_tags":
                return self._triggered_tags(node, last)
            case "tags_with_separator":
                return self._tags_with_separator(node)
        raise FormatError("a GBNF grammar and a JSON schema that only llguidance honours cannot be parts of one format")

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        self._names += 1
        name = f"part_{self._names}"
        self.lines.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        self._names += 1
        name = f"TEXT_{self._names}"
        self.lines.append(f"{name}: {body}")
        return name

    @staticmethod
    def _any(parts: Any) -> str:
        return f"({' | '.join(parts)})"

    def _text(self, node: Format, last: bool) -> str:
        if not last:
            raise FormatError("free text ('any_text') must come last, or in a tag whose 'end' ends it")
        return self._terminal(_without(node.get("excludes", [])))

    def _tag(self, node: Format, trigger: str) -> str:
        """A tag, without the beginning that a trigger has brought already."""
        ends = node["end"] if isinstance(node["end"], list) else [node["end"]]
        begin = node["begin"].removeprefix(trigger)
        parts = [slashed(literal(begin))] if begin else []
        end = "|".join(literal(text) for text in ends)
        content = node["content"]
        if content["type"] == "any_text":
            text = self._terminal(f"({_without(content.get('excludes', []))}) {slashed(f'(?:{end})')}")
            return " ".join([*parts, self._rule(text, lazy=True)])
        parts.append(self.render(content, last=False))
        return " ".join([*parts, slashed(f"(?:{end})")] if end else parts)

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
            bodies = self._rule(self._any(self._tag(tag, trigger) or '""' for tag in tags))
            first.append(f"{slashed(literal(trigger))} {bodies}")
            text = self._terminal(f"({_without(excludes)}) {slashed(literal(trigger))}")
            further.append(f"{self._rule(text, lazy=True)} {bodies}")
        rest = self._terminal(_without([*excludes, *node["triggers"]]))
        one = self._any(further)
        if needed:
            return self._any(first) if once else f"{self._any(first)} {one}* {rest}"
        return f"({one} | {rest})" if once else f"{one}* {rest}"

    def _tags_with_separator(self, node: Format) -> str:
        tag = self._rule(self._any(self._tag(tag, "") for tag in node["tags"]))
        separator = slashed(literal(node["separator"]))
        several = tag if node.get("stop_after_first") else f"{tag} ({separator} {tag})*"
        return several if node.get("at_least_one") else f"({several})?"


def _without(excluded: list[str]) -> str:
    """A terminal: any text that holds none of these."""
    if not excluded:
        return slashed(_TEXT)
    alternatives = "|".join(literal(text) for text in excluded)
    return f"{slashed(_TEXT)} & ~{slashed(f'{_TEXT}(?:{alternatives}){_TEXT}')}"


def regular(node: Format) -> str | None:  # noqa: PLR0911
    """The regular expression that a format amounts to, if it is made of nothing but strings and expressions."""
    match node["type"]:
        case "const_string":
            return literal(node["value"])
        case "regex":
            return f"(?:{node['pattern']})"
        case "grammar":
            return ebnf_forms.regex(ebnf.parse(node["grammar"]))
        case "sequence" | "or":
            parts = [regular(part) for part in node["elements"]]
            if any(part is None for part in parts):
                return None
            return "".join(map(str, parts)) if node["type"] == "sequence" else f"(?:{'|'.join(map(str, parts))})"
        case "optional" | "star" | "plus" | "repeat":
            part = regular(node["content"])
            if part is None:
                return None
            signs = {"optional": "?", "star": "*", "plus": "+"}
            return f"(?:{part}){signs.get(node['type']) or _counted(node)}"
        case "tag":
            part = regular(node["content"])
            if part is None:
                return None
            ends = node["end"] if isinstance(node["end"], list) else [node["end"]]
            return f"{literal(node['begin'])}{part}(?:{'|'.join(map(literal, ends))})"
    return None


def _counted(node: Format) -> str:
    return f"{{{node['min']},{'' if node['max'] == -1 else node['max']}}}"
