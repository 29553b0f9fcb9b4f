"""Formats as GBNF grammars: whole ones for engines whose xgrammar has no structural tags, parts for one that has.

Such without are TensorRT engines, of TensorRT-LLM's own API or the C++ backend's: their xgrammar is built in, is older
than the one used here, and reads GBNF. What a format allows is what xgrammar 0.2.8 takes the same structural tag for,
but for what the least of GBNF cannot say (`gbnf_writing`, `gbnf_texts`). xgrammar's own converter is no use: it needs
torch, and writes what older versions do not read.

The embedded engine's xgrammar has structural tags, and gets JSON schemas, regular expressions and users' grammars in
this form: of what it makes of them itself, `"Größe"` is never generated (see `gbnf_writing` on escapes), strings hold
half surrogate pairs, and a repeated part that may be empty takes it a minute.
"""

from __future__ import annotations

from typing import Any

from openai_bls.output.structured import ebnf, gbnf_json, gbnf_patterns, gbnf_texts
from openai_bls.output.structured.ebnf_tree import Choice, Literal, Node, Repeat, Rule, Sequence, mapped
from openai_bls.output.structured.gbnf_rules import EMPTY, Rules

Format = dict[str, Any]


def gbnf(wanted: Format, *, current: bool = False) -> str:
    """A GBNF grammar whose language is that of a format.

    Takes about as long as `formats.checked` does.

    Args:
        wanted: checked, with nothing beyond xgrammar.
        current: for an xgrammar of 0.2 alone, which tells characters beyond ASCII apart, and takes rules that begin
            with themselves.

    Raises:
        FormatError: it has what no GBNF grammar can say to that xgrammar, or would be too large as one.
    """
    writer = _Writer(current)
    return writer.rules.text(writer.node(wanted, ()))


def with_grammars(node: Format) -> Format:
    """A format with GBNF for its JSON schemas, regular expressions and grammars, for a current xgrammar's tags.

    Raises:
        FormatError: one would be too large.
    """
    if is_grammar(node):
        return {"type": "grammar", "grammar": gbnf(node, current=True)}
    found = dict(node)
    for key in ("elements", "tags"):
        if key in node:
            found[key] = [with_grammars(part) for part in node[key]]
    if "content" in node:
        found["content"] = with_grammars(node["content"])
    return found


def is_grammar(node: Format) -> bool:
    """Whether a format is a JSON schema, a regular expression or a grammar, and no more."""
    return node["type"] in ("regex", "grammar") or (node["type"] == "json_schema" and "style" not in node)


class _Writer:
    def __init__(self, current: bool) -> None:
        self.rules = Rules(current=current)

    def node(self, node: Format, ends: tuple[str, ...]) -> Node:  # noqa: PLR0911
        """The part of the grammar for a format.

        Args:
            node: it.
            ends: what the tag around it ends with, which free text in it must not hold.
        """
        match node["type"]:
            case "json_schema":
                write = gbnf_json.qwen_xml if "style" in node else gbnf_json.json_text
                return write(self.rules, node["json_schema"])
            case "regex":
                return gbnf_patterns.node(node["pattern"])
            case "grammar":
                return self._grammar(node["grammar"])
            case "const_string":
                return Literal(node["value"])
            case "any_text":
                return gbnf_texts.text(self.rules, [*node.get("excludes", ()), *ends])
            case "sequence":
                return Sequence(tuple(self.node(part, ends) for part in node["elements"]))
            case "or":
                return Choice(tuple(self.node(part, ends) for part in node["elements"]))
            case "tag":
                return self._tag(node, "")
            case "triggered_tags":
                return self._triggered_tags(node, ends)
            case "tags_with_separator":
                return self._tags_with_separator(node)
        least = node.get("min", 1 if node["type"] == "plus" else 0)
        most = node.get("max", 1 if node["type"] == "optional" else -1)
        return Repeat(self.node(node["content"], ends), least, None if most == -1 else most)

    def _grammar(self, source: str) -> Node:
        parsed = ebnf.parse(source)
        names = {name: self.rules.reserve("given") for name in parsed}
        for name, node in parsed.items():
            self.rules.define(names[name], _renamed(node, names))
        return names["root"]

    def _tag(self, node: Format, trigger: str) -> Node:
        """A tag, without the beginning that a trigger has brought already."""
        begin = Literal(node["begin"].removeprefix(trigger))
        ends = tuple(node["end"] if isinstance(node["end"], list) else [node["end"]])
        content = node["content"]
        if content["type"] == "any_text" and all(ends):
            excludes = content.get("excludes", [])
            return Sequence((begin, gbnf_texts.text(self.rules, excludes, ends=ends)))
        inner = self.node(content, tuple(filter(None, ends)))
        return Sequence((begin, inner, Choice(tuple(map(Literal, ends)))))

    def _triggered_tags(self, node: Format, ends: tuple[str, ...]) -> Node:
        once, needed = node.get("stop_after_first", False), node.get("at_least_one", False)
        start = self.rules.reserve("text")
        bodies: dict[str, list[Node]] = {trigger: [] for trigger in node["triggers"]}
        first: list[Node] = []
        for tag in node["tags"]:
            trigger = next(trigger for trigger in bodies if tag["begin"].startswith(trigger))
            body = self.rules.add("tag", self._tag(tag, trigger))
            bodies[trigger].append(body)
            first.append(Sequence((Literal(trigger), body)))
        if needed and once:
            return Choice(tuple(first))
        follows: dict[str, Node] = {
            trigger: Sequence((Choice(tuple(tags)), EMPTY if once else start))
            for trigger, tags in bodies.items()
            if tags
        }
        # A trigger of no tag leads nowhere.
        excludes = [*node.get("excludes", ()), *ends, *(trigger for trigger, tags in bodies.items() if not tags)]
        text = gbnf_texts.automaton(self.rules, start, excludes, follows)
        return Sequence((Choice(tuple(first)), text)) if needed else text

    def _tags_with_separator(self, node: Format) -> Node:
        tags = self.rules.add("tags", Choice(tuple(self._tag(tag, "") for tag in node["tags"])))
        further = Repeat(Sequence((Literal(node["separator"]), tags)), 0, None)
        several = tags if node.get("stop_after_first") else Sequence((tags, further))
        return several if node.get("at_least_one") else Repeat(several, 0, 1)


def _renamed(node: Node, names: dict[str, Rule]) -> Node:
    if isinstance(node, Rule):
        return names[node.name]
    return mapped(node, lambda part: _renamed(part, names))
