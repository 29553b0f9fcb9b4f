"""Rules of `gbnf` as its text, with parts that are used often, or lie deep, as separate rules."""

from __future__ import annotations

from collections.abc import Callable

from openai_bls.output.structured.grammars.gbnf import CharSet, Literal, Node, Repeat, Rule, Sequence, count
from openai_bls.output.structured.libraries.gbnf_lark import TERMINAL

# Groups within one another in one rule.
_MAX_GROUPS = 12


def written(rules: dict[str, Node], root: str, is_terminal: Callable[[str], bool]) -> str:
    """A grammar as text, in which the names of terminals begin with `gbnf_lark.TERMINAL`.

    Args:
        rules: the rules, whose names are those of GBNF.
        root: name of the rule that is the whole text.
        is_terminal: whether the rule of a name is a terminal.
    """
    return _Writer(rules, root, is_terminal).written()


class _Writer:
    def __init__(self, rules: dict[str, Node], root: str, is_terminal: Callable[[str], bool]) -> None:
        self._rules = rules
        self._names = {
            name: "root" if name == root else f"{TERMINAL if is_terminal(name) else 'r-'}{name}" for name in rules
        }
        self._lines: list[str] = []
        self._parts: dict[Node, str] = {}
        # Terminals have parts of their own, which are terminals too.
        self._prefix = ""

    def written(self) -> str:
        for name, node in self._rules.items():
            prefix = TERMINAL if self._names[name].startswith(TERMINAL) else "r-"
            if prefix != self._prefix:
                self._prefix, self._parts = prefix, {}
            self._lines.append(f"{self._names[name]} ::= {self._text(node, 0)}")
        return "\n".join(self._lines)

    def _text(self, node: Node, depth: int) -> str:
        match node:
            case Literal(text):
                return '"' + "".join(map(_char, text)) + '"'
            case Rule(name):
                return self._names[name]
            case CharSet():
                return self._part(node)
            case Sequence(parts, choice):
                if depth > _MAX_GROUPS:
                    return self._part(node)
                inner = (" | " if choice else " ").join(self._text(part, depth + 1) for part in parts) or '""'
                return f"({inner})" if depth and len(parts) != 1 else inner
            case Repeat(part, least, most):
                inner = self._text(part, depth + 1)
                grouped = f"({inner})" if isinstance(part, Repeat) else inner
                return f"{grouped}{count(least, most)}"

    def _part(self, node: Node) -> str:
        """The name of a rule for a part."""
        if node not in self._parts:
            prefix = TERMINAL if isinstance(node, CharSet) else self._prefix
            self._parts[node] = f"{prefix}-{len(self._lines)}-{len(self._parts)}"
            text = _set(node) if isinstance(node, CharSet) else self._text(node, 0)
            self._lines.append(f"{self._parts[node]} ::= {text}")
        return self._parts[node]


def _set(node: CharSet) -> str:
    parts = (_char(chr(first)) + (f"-{_char(chr(last))}" if last > first else "") for first, last in node.ranges)
    return f"[{'^' if node.negated else ''}{''.join(parts)}]"


def _char(char: str) -> str:
    return char if char.isascii() and (char.isalnum() or char == " ") else f"\\U{ord(char):08x}"
