"""Rules and terminals of a Lark grammar for llguidance, and what they are written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from openai_bls.output.structured import schema_nodes
from openai_bls.output.structured.errors import dumped
from openai_bls.output.structured.gbnf import slashed
from openai_bls.output.structured.patterns import literal
from openai_bls.output.structured.schema_nodes import Schema

_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options of llguidance for JSON as `json.dumps` writes it."""

_TEXT = r"(?s:.*)"


class Rules:
    """The lines of a grammar, but for its start."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0

    def name(self, kind: str) -> str:
        """A name that no other rule or terminal has."""
        self._names += 1
        return f"{kind}_{self._names}"

    def rule(self, body: str) -> str:
        """The name of a new rule."""
        name = self.name("part")
        self.lines.append(f"{name}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """The name of a new terminal."""
        name = self.name("TEXT")
        self.lines.append(f"{name}: {body}")
        return name

    def up_to(self, ends: Sequence[str], excludes: Sequence[str] = ()) -> str:
        """Any text without `excludes`, up to the first of `ends`."""
        text = self.terminal(f"({without(excludes)}) {slashed(one_of(ends))}")
        name = self.name("part")
        self.lines.append(f"{name}[lazy]: {text}")
        return name

    def json(self, checked: Schema) -> str:
        """The name of a new rule: JSON that a checked schema allows."""
        return self.rule(f"%json {json_schema(checked)}")


def json_schema(checked: Schema) -> str:
    """A checked schema as llguidance takes it."""
    options = dict(_JSON_OPTIONS)
    if schema_nodes.open_names(checked):
        # Else a free name may be a declared one with an escape: {"\u0061": ...}.
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return dumped({**checked, "x-guidance": options})


def any_of(parts: Iterable[str]) -> str:
    """A rule's body: one of these."""
    return f"({' | '.join(parts)})"


def one_of(texts: Iterable[str]) -> str:
    """A regular expression: one of these texts."""
    return f"(?:{'|'.join(map(literal, texts))})"


def without(excluded: Sequence[str]) -> str:
    """A terminal's body: any text that holds none of these."""
    if not excluded:
        return slashed(_TEXT)
    return f"{slashed(_TEXT)} & ~{slashed(_TEXT + one_of(excluded) + _TEXT)}"
