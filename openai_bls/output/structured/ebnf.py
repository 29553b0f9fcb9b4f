r"""Grammars in the GBNF dialect of EBNF (llama.cpp's, xgrammar's): read and checked.

::

    root  ::= expr ("," expr)*      # the whole output
    expr  ::= "(" expr ")" | [a-z]{1,8} | "\"" [^"\n]* "\""

A rule goes on until the next one begins. Literals and sets know the escapes `\n \r \t \\ \" \' \- \[ \] \^ \xHH \uHHHH
\UHHHHHHHH`. xgrammar's macros, lookaheads and rule options are not supported.
"""

from __future__ import annotations

import re

from openai_bls.output.structured.charsets import complement, normal
from openai_bls.output.structured.ebnf_tree import CharSet, Choice, Literal, Node, Repeat, Rule, Sequence, check
from openai_bls.output.structured.errors import FormatError

_MAX_DEPTH = 40
_MAX_RULES = 10_000
# No expression here can read the same text in two ways: what does takes time without end on a text that never fits.
_SPACE = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:#[^\n]*)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_COUNT = re.compile(r"\{\s*(\d{1,6})\s*(?:(,)\s*(?:(\d{1,6})\s*)?)?\}")
_LARK = re.compile(r"^[^\S\n]*(?:%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_CHAR_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", **{char: char for char in "\\\"'-[]^/"}}


def parse(text: str) -> dict[str, Node]:
    """A grammar's rules.

    Raises:
        FormatError: it is none, or nothing matches it.
    """
    return _Parser(text).parse()


def is_lark(text: str) -> bool:
    """Whether a grammar is written in Lark's form instead."""
    return "::=" not in text or _LARK.search(text) is not None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip()
        while self._at < len(self._text):
            head = self._head()
            if head is None:
                raise self._error("a rule begins with its name and '::='")
            name, self._at = head
            if name in rules:
                raise self._error(f"there are two rules {name!r}")
            if len(rules) == _MAX_RULES:
                raise FormatError(f"the grammar is too large: over {_MAX_RULES} rules")
            self._skip()
            rules[name] = self._choice(0)
        check(rules)
        return rules

    def _error(self, what: str) -> FormatError:
        line = self._text.count("\n", 0, self._at) + 1
        return FormatError(f"bad grammar, line {line}: {what}")

    def _head(self) -> tuple[str, int] | None:
        """The name of the rule that begins here, and where its body does; None if none begins."""
        name = _NAME.match(self._text, self._at)
        if name is None:
            return None
        sign = self._after_space(name.end())
        return (name[0], sign + len("::=")) if self._text.startswith("::=", sign) else None

    def _skip(self) -> None:
        self._at = self._after_space(self._at)

    def _after_space(self, place: int) -> int:
        match = _SPACE.match(self._text, place)
        return match.end() if match else place

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self._error("nested too deeply")
        parts = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            self._skip()
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")") and self._head() is None:
            parts.append(self._repeated(self._part(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self, depth: int) -> Node:
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._set()
        if char == "(":
            self._at += 1
            self._skip()
            if self._peek() == "=":
                raise self._error("lookaheads are not supported")
            node = self._choice(depth + 1)
            if self._peek() != ")":
                raise self._error("missing ')'")
            self._at += 1
            return node
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._error(f"unexpected {char!r}")
        self._at = name.end()
        if self._peek() in ("(", "["):
            raise self._error(f"{name[0]}{self._peek()}...: macros and rule options are not supported")
        return Rule(name[0])

    def _repeated(self, node: Node) -> Node:
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            node = Repeat(node, 1 if char == "+" else 0, 1 if char == "?" else None)
        elif char == "{":
            match = _COUNT.match(self._text, self._at)
            if match is None:
                raise self._error("a count is {n}, {n,} or {n,m}")
            least = int(match[1])
            most = int(match[3]) if match[3] else None if match[2] else least
            if most is not None and most < least:
                raise self._error("a count whose end comes before its beginning")
            self._at = match.end()
            node = Repeat(node, least, most)
        self._skip()
        if char and char in "*+?{" and self._peek() and self._peek() in "*+?{":
            raise self._error("two counts in a row")
        return node

    def _char(self) -> str:
        """The character at hand, escaped or not."""
        char = self._peek()
        if char in ("", "\n", "\r"):
            raise self._error("a line ends within a literal or a set")
        if char != "\\":
            self._at += 1
        else:
            match = _CHAR_ESCAPE.match(self._text, self._at)
            code = match[1] or match[2] or match[3] if match else None
            if match is None or (code is None and match[4] not in _SIMPLE) or int(code or "0", 16) > 0x10FFFF:
                raise self._error(f"unknown escape {self._text[self._at : self._at + 2]!r}")
            self._at = match.end()
            char = chr(int(code, 16)) if code else _SIMPLE[match[4]]
        if "\ud800" <= char <= "\udfff":
            raise self._error("half a surrogate pair")
        return char

    def _literal(self) -> Node:
        self._at += 1
        chars = []
        while self._peek() != '"':
            chars.append(self._char())
        self._at += 1
        return Literal("".join(chars))

    def _set(self) -> Node:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges = []
        while self._peek() != "]":
            first = last = self._char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._char()
            if last < first:
                raise self._error("bad range in a set")
            ranges.append((ord(first), ord(last)))
        self._at += 1
        found = normal(ranges)
        if negated:
            found = complement(found)
        if not found:
            raise self._error("a set that nothing matches")
        return CharSet(found)
