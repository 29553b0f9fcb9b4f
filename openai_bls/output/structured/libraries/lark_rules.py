"""Rules and terminals of a Lark grammar for llguidance, and what they are written with.

Markers are tokens that an engine's grammars do not take for text (`<tool_call>` in vLLM): a text that has one in it is
written with the token's id, `<[151657]>`, and the parts around it. Free text is ended by a marker's token alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from openai_bls.output.structured.errors import dumped
from openai_bls.output.structured.grammars.gbnf import slashed
from openai_bls.output.structured.patterns import literal
from openai_bls.output.structured.schemas import schema_nodes
from openai_bls.output.structured.schemas.schema_nodes import Schema

_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options of llguidance for JSON as `json.dumps` writes it."""

_TEXT = r"(?s:.*)"


class Rules:
    """The lines of a grammar, but for its start."""

    def __init__(self, markers: Mapping[str, int] | None = None) -> None:
        """Begin without lines.

        Args:
            markers: id of each marker by its text; None if text is matched by whatever tokens spell it.
        """
        self.lines: list[str] = []
        self._names = 0
        self._markers = markers or {}
        longest_first = sorted(self._markers, key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

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

    def has_marker(self, text: str) -> bool:
        """True if there is a marker in a text."""
        return self._marker is not None and self._marker.search(text) is not None

    def text(self, text: str) -> str:
        """An expression for a text."""
        return self.pattern(text, text_of=literal)

    def texts(self, texts: Sequence[str]) -> str:
        """An expression for one of these texts."""
        if any(map(self.has_marker, texts)):
            return any_of(map(self.text, texts))
        return slashed(one_of(texts))

    def pattern(self, source: str, text_of: Callable[[str], str] = str) -> str:
        """An expression for a regular expression in which markers stand in no group.

        Args:
            source: the regular expression, or what `text_of` makes one of.
            text_of: applied to the parts between markers.
        """
        parts = [""] if not source else []
        at = 0
        for found in self._marker.finditer(source) if self._marker else ():
            parts += [slashed(text_of(source[at : found.start()])), f"<[{self._markers[found[0]]}]>"]
            at = found.end()
        parts.append(slashed(text_of(source[at:])))
        return " ".join(part for part in parts if part not in ("", '""')) or '""'

    def up_to(self, ends: Sequence[str], excludes: Sequence[str] = ()) -> str:
        """Any text without `excludes`, up to the first of `ends`."""
        spelled = [end for end in ends if not self.has_marker(end)]
        parts = [self._up_to_marker(end, [*excludes, *ends]) for end in ends if self.has_marker(end)]
        if spelled:
            text = self.terminal(f"({without(excludes)}) {slashed(one_of(spelled))}")
            name = self.name("part")
            self.lines.append(f"{name}[lazy]: {text}")
            parts.append(name)
        return parts[0] if len(parts) == 1 else self.rule(any_of(parts))

    def _up_to_marker(self, end: str, excludes: Sequence[str]) -> str:
        assert self._marker is not None
        found = self._marker.search(end)
        assert found is not None
        before, after = end[: found.start()], end[found.start() :]
        text = without(excludes) + (f" & {slashed(_TEXT + literal(before))}" if before else "")
        return self.rule(f"{self.terminal(text)} {self.text(after)}")

    def ended(self, body: str, end: str) -> str:
        """An expression for a terminal's body and the text after it, up to a marker one terminal.

        Args:
            body: body of a terminal.
            end: the text.
        """
        marker = self._marker.search(end) if self._marker is not None else None
        spelled = end if marker is None else end[: marker.start()]
        terminal = self.terminal(f"{body} {slashed(literal(spelled))}" if spelled else body)
        return f"{terminal} {self.text(end[len(spelled) :])}" if marker is not None else terminal

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


def containing(excluded: Sequence[str]) -> str:
    """A regular expression: any text that holds one of these."""
    return _TEXT + one_of(excluded) + _TEXT


def without(excluded: Sequence[str]) -> str:
    """A terminal's body: any text that holds none of these."""
    if not excluded:
        return slashed(_TEXT)
    return f"{slashed(_TEXT)} & ~{slashed(containing(excluded))}"
