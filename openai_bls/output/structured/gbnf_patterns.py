"""Regular expressions in the plain form of `patterns`, read again as parts of a grammar."""

from __future__ import annotations

import re

from openai_bls.output.structured.charsets import normal
from openai_bls.output.structured.ebnf_tree import CharSet, Choice, Literal, Node, Repeat, Sequence

_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_HEX = re.compile(r"\\x([0-9a-f]{2})")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}


def node(pattern: str) -> Node:
    """The part of a grammar that an expression amounts to.

    Args:
        pattern: in plain form, for a whole text.
    """
    return _Reader(pattern).alternatives()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def alternatives(self) -> Node:
        parts = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._part()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Node:
        if self._pattern.startswith("(?:", self._at):
            self._at += 3
            found = self.alternatives()
            self._at += 1
            return found
        if self._next() == "[":
            return self._set()
        return Literal(self._char())

    def _repeated(self, part: Node) -> Node:
        char = self._next()
        if char and char in "*+?":
            self._at += 1
            return Repeat(part, 1 if char == "+" else 0, 1 if char == "?" else None)
        match = _COUNT.match(self._pattern, self._at)
        if match is None:
            return part
        self._at = match.end()
        least = int(match[1])
        return Repeat(part, least, int(match[3]) if match[3] else None if match[2] else least)

    def _char(self) -> str:
        char = self._pattern[self._at]
        if char != "\\":
            self._at += 1
            return char
        by_number = _HEX.match(self._pattern, self._at)
        if by_number is not None:
            self._at = by_number.end()
            return chr(int(by_number[1], 16))
        self._at += 2
        char = self._pattern[self._at - 1]
        return _CONTROL.get(char, char)

    def _set(self) -> Node:
        self._at += 1
        ranges = []
        while self._next() != "]":
            first = last = ord(self._char())
            if self._next() == "-":
                self._at += 1
                last = ord(self._char())
            ranges.append((first, last))
        self._at += 1
        return CharSet(normal(ranges))
