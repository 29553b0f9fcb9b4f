r"""Languages as they stand in JSON strings: each character as `json.dumps` writes it, `\n` for a line feed.

A set of characters becomes those that stand for themselves, and the escapes of the others. The escapes are the
canonical ones, so a text is in the language just where its one escaped form is in the escaped language.
"""

from __future__ import annotations

from collections.abc import Iterable

from openai_bls.output.structured.grammars.gbnf import CharSet, Literal, Node, Repeat, Rule, Sequence
from openai_bls.output.structured.grammars.pruning import NOTHING
from openai_bls.output.structured.grammars.regex_nodes import complement, merged

ESCAPE = "\\"
_SHORT = {'"': '"', "\\": "\\", "\n": "n", "\t": "t", "\r": "r", "\b": "b", "\f": "f"}
_ESCAPED: list[tuple[int, int]] = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]


def escaped(rules: dict[str, Node], *, controls: bool, also: str = "") -> dict[str, Node]:
    """The rules of the escaped language.

    Args:
        rules: the rules of the language.
        controls: whether there are control characters without a short escape, which are `\\u00XX`; else the language
            is without the texts that have them.
        also: other characters to escape, as `\\u00XX`.
    """
    escaper = _Escaper(controls, also)
    found = {name: escaper.node(node) for name, node in rules.items()}
    return {**found, **escaper.sets}


class _Escaper:
    def __init__(self, controls: bool, also: str) -> None:
        self._controls = controls
        self._also = also
        self._special = merged([*_ESCAPED, *((ord(char), ord(char)) for char in also)])
        self.sets: dict[str, Node] = {}
        """Rules of the sets, which are written once each; by their names terminals."""
        self._names: dict[CharSet, str] = {}

    def node(self, node: Node) -> Node:
        match node:
            case Literal(text):
                return Literal("".join(map(self._char, text))) if self._controls else self._literal(text)
            case CharSet():
                if node not in self._names:
                    self._names[node] = f"SET-{len(self._names)}"
                    self.sets[self._names[node]] = self._set(node)
                return Rule(self._names[node])
            case Sequence(parts, choice):
                return Sequence(tuple(map(self.node, parts)), choice)
            case Repeat(part, least, most):
                return Repeat(self.node(part), least, most)
        return node

    def _char(self, char: str) -> str:
        if char in _SHORT:
            return ESCAPE + _SHORT[char]
        return f"\\u{ord(char):04x}" if char < " " or char in self._also else char

    def _literal(self, text: str) -> Node:
        known = all(char >= " " or char in _SHORT for char in text)
        return Literal("".join(map(self._char, text))) if known else NOTHING

    def _set(self, node: CharSet) -> Node:
        ranges = complement(list(node.ranges)) if node.negated else list(node.ranges)
        special = [chr(point) for first, last in self._special for point in range(first, last + 1)]
        held = [char for char in special if any(first <= ord(char) <= last for first, last in ranges)]
        parts: list[Node] = []
        if node.negated:
            plain = merged([*node.ranges, *self._special])
            if complement(plain):
                parts.append(CharSet(tuple(plain), negated=True))
        elif plain := complement(merged([*complement(merged(ranges)), *self._special, (0xD800, 0xDFFF)])):
            parts.append(CharSet(tuple(plain), negated=False))
        short = [_SHORT[char] for char in held if char in _SHORT]
        if short:
            parts.append(Sequence((Literal(ESCAPE), _one_of(short))))
        coded = [char for char in held if char not in _SHORT and (self._controls or char in self._also)]
        for head in dict.fromkeys(f"{ord(char):04x}"[:3] for char in coded):
            digits = [f"{ord(char):04x}"[3] for char in coded if f"{ord(char):04x}".startswith(head)]
            parts.append(Sequence((Literal(f"\\u{head}"), _one_of(digits))))
        if not parts:
            return NOTHING
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts), choice=True)


def _one_of(chars: Iterable[str]) -> Node:
    ranges = merged([(ord(char), ord(char)) for char in chars])
    return Literal(chr(ranges[0][0])) if ranges[0][0] == ranges[-1][1] else CharSet(tuple(ranges), negated=False)
