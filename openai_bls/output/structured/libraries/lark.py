"""Formats as Lark grammars for llguidance.

llguidance reads with a lexer that takes the longest match. So everything regular becomes one terminal, in which nothing
is ambiguous; JSON schemas are separate rules (`%json`); free text that must end somewhere is a lazy terminal.
"""

from __future__ import annotations

from collections.abc import Mapping

from openai_bls.output.structured import patterns
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.formats import Format
from openai_bls.output.structured.grammars import ending, gbnf
from openai_bls.output.structured.grammars.gbnf import slashed
from openai_bls.output.structured.libraries import gbnf_lark
from openai_bls.output.structured.libraries.lark_arguments import ArgumentRules
from openai_bls.output.structured.libraries.lark_rules import any_of, containing, one_of, without
from openai_bls.output.structured.patterns import literal


def lark(wanted: Format, markers: Mapping[str, int] | None = None) -> str:
    """A checked format as a Lark grammar.

    Args:
        wanted: the format.
        markers: tokens that are no text to the engine's grammars, by their text; see `lark_rules`.

    Raises:
        FormatError: it has what llguidance cannot do: free text with no mark of its own to end it, for one.
    """
    renderer = _Renderer(markers)
    start = renderer.render(wanted, last=True)
    return "\n".join(["%llguidance {}", f"start: {start}", *renderer.lines])


class _Renderer(ArgumentRules):
    def __init__(self, markers: Mapping[str, int] | None = None) -> None:
        super().__init__(markers)
        # By the identity of a part: each is looked at once, not once for each that it is in.
        self._regular: dict[int, str | None] = {}
        self._marked: dict[int, bool] = {}

    def render(self, node: Format, *, last: bool) -> str:  # noqa: PLR0911, PLR0912
        """An expression for a rule's body; `last`: the output ends with it."""
        pattern = None if self._is_marked(node) else _regular(node, self._regular)
        if pattern is not None:
            return slashed(pattern)
        match node["type"]:
            case "const_string":
                return self.text(node["value"])
            case "json_schema" if "style" in node:
                return self.arguments(node["json_schema"], node["style"])
            case "json_schema":
                return self.json(node["json_schema"])
            case "grammar":
                if node.get("excludes"):
                    raise FormatError("a grammar with 'excludes' must stand in a tag whose 'end' ends it")
                return self._grammar(node)
            case "any_text":
                if not last:
                    raise FormatError("free text ('any_text') must come last, or in a tag whose 'end' ends it")
                return self.terminal(without(node.get("excludes", [])))
            case "sequence":
                *before, final = node["elements"]
                parts = [self.render(part, last=False) for part in before]
                return " ".join([*parts, self.render(final, last=last)])
            case "or":
                return any_of(self.render(part, last=last) for part in node["elements"])
            case "optional":
                return f"({self.render(node['content'], last=last)})?"
            case "star" | "plus" | "repeat":
                return f"({self.render(node['content'], last=False)}){_sign(node)}"
            case "tag":
                return self._tag(node, "")
            case "triggered_tags":
                return self._triggered_tags(node, last)
        return self._tags_with_separator(node)

    def _tag(self, node: Format, trigger: str) -> str:
        """A tag, without the part of its beginning that the trigger has matched."""
        ends = _ends(node)
        begin = node["begin"].removeprefix(trigger)
        parts = [self.text(begin)] if begin else []
        content = node["content"]
        if content["type"] == "any_text":
            return " ".join([*parts, self.up_to(ends, content.get("excludes", []))])
        if content.get("excludes") and content["type"] == "grammar":
            return " ".join([*parts, self._ended(content, ends)])
        parts.append(self.render(content, last=False))
        return " ".join([*parts, self.texts(ends)] if any(ends) else parts)

    def _ended(self, node: Format, ends: list[str]) -> str:
        """A text of a grammar without its excluded strings, and one of `ends`."""
        excludes = node["excludes"]
        pattern = gbnf_lark.regex(node["grammar"])
        if pattern is not None:
            # One terminal with the end: the lexer could not tell where the text is over.
            held = f"({slashed(pattern)} & ~{slashed(containing(excludes))})"
            return self.rule(any_of(self.ended(held, end) for end in ends))
        # Within a JSON string no text goes on with the quote that ends it.
        ending.check(gbnf.parse(node["grammar"]), excludes, [] if node.get("escaped") else ends)
        return f"{self._grammar(node)} {self.texts(ends)}"

    def _grammar(self, node: Format) -> str:
        name = self.name("grammar")
        flags = {key: key in node for key in ("terminals", "escaped")}
        self.lines.append(gbnf_lark.lark(gbnf.parse(node["grammar"]), name, **flags))
        return name

    def _is_marked(self, node: Format) -> bool:
        """True if a string of a format has a marker in it; those in clients' expressions are text."""
        if id(node) not in self._marked:
            parts = [
                *node.get("elements", ()),
                *node.get("tags", ()),
                *([node["content"]] if "content" in node else ()),
            ]
            strings = [node.get("value", ""), node.get("begin", ""), *(_ends(node) if "end" in node else ())]
            self._marked[id(node)] = any(map(self.has_marker, strings)) or any(map(self._is_marked, parts))
        return self._marked[id(node)]

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
            bodies = self.rule(any_of(self._tag(tag, trigger) or '""' for tag in tags))
            first.append(f"{self.text(trigger)} {bodies}")
            further.append(f"{self.up_to([trigger], excludes)} {bodies}")
        rest = self.terminal(without([*excludes, *node["triggers"]]))
        one = any_of(further)
        if needed:
            return any_of(first) if once else f"{any_of(first)} {one}* {rest}"
        return f"({one} | {rest})" if once else f"{one}* {rest}"

    def _tags_with_separator(self, node: Format) -> str:
        tag = self.rule(any_of(self._tag(tag, "") for tag in node["tags"]))
        separator = self.text(node["separator"])
        several = tag if node.get("stop_after_first") else f"{tag} ({separator} {tag})*"
        return several if node.get("at_least_one") else f"({several})?"


def _ends(node: Format) -> list[str]:
    return node["end"] if isinstance(node["end"], list) else [node["end"]]


def regular(node: Format) -> str | None:
    """The regular expression that a format amounts to, if it is made of nothing but strings and expressions."""
    return _regular(node, {})


def _regular(node: Format, known: dict[int, str | None]) -> str | None:
    """The same; what is `known` is not worked out again."""
    if id(node) not in known:
        known[id(node)] = _expression(node, known)
    return known[id(node)]


def _expression(node: Format, known: dict[int, str | None]) -> str | None:  # noqa: PLR0911
    match node["type"]:
        case "const_string":
            return literal(node["value"])
        case "regex":
            return f"(?:{patterns.full(node['pattern'])})"
        case "grammar":
            return None if node.get("excludes") else gbnf_lark.regex(node["grammar"])
        case "sequence" | "or":
            parts = [_regular(part, known) for part in node["elements"]]
            if any(part is None for part in parts):
                return None
            return "".join(map(str, parts)) if node["type"] == "sequence" else f"(?:{'|'.join(map(str, parts))})"
        case "optional" | "star" | "plus" | "repeat":
            part = _regular(node["content"], known)
            return None if part is None else f"(?:{part}){_sign(node)}"
        case "tag":
            part = _regular(node["content"], known)
            return None if part is None else f"{literal(node['begin'])}{part}{one_of(_ends(node))}"
    return None


def _sign(node: Format) -> str:
    signs = {"optional": "?", "star": "*", "plus": "+"}
    if node["type"] in signs:
        return signs[node["type"]]
    return gbnf.count(node["min"], None if node["max"] == -1 else node["max"])
