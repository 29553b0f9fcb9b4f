r"""Regular expressions as parts of grammars, for grammars of custom tools: `regex` itself, and the terminals of Lark.

The dialect is Rust's, which OpenAI names for them, as far as all libraries agree: `\d`, `\w` and `\s` are ASCII, what
is not one of them (`\W`, `[^\w]`) is what no dialect counts in, `.` is anything but a line feed. Lazy quantifiers match
the same texts as greedy ones. What is no regular expression proper is refused by name.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.grammars.gbnf import CharSet, Literal, Node, Repeat, Sequence

Ranges = list[tuple[int, int]]

_MAX_DEPTH = 20
_MAX_COUNT = 20_000
LAST = 0x10FFFF
_GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)]))|\((?!\?)")
_COUNT = re.compile(r"[*+?]|\{\s*(\d{1,7})\s*(?:(,)\s*(?:(\d{1,7})\s*)?)?\}|\{\s*,\s*(\d{1,7})\s*\}")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[xuU]\{([0-9A-Fa-f]{1,6})\}")
_CONTROL = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0, "a": 0x07}
_ASCII: dict[str, Ranges] = {
    "d": [(0x30, 0x39)],
    "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "s": [(0x09, 0x0D), (0x20, 0x20)],
}
_SPACES = {*range(0x1C, 0x20), 0x85, 0xFEFF}
# What folds to an ASCII letter in Unicode, besides its other case.
_FOLDED = {"k": 0x212A, "s": 0x17F}


class Characters:
    """Count of what the sets of characters of one grammar, or of one expression, are made of."""

    _MAX_RANGES = 20_000
    # 0.3 s, of which `[^\w]` takes a third.
    _MAX_CASED = 400_000

    def __init__(self) -> None:
        self._ranges = self._cased = 0
        self._known: dict[tuple[tuple[tuple[int, int], ...], bool], Ranges] = {}

    def add_ranges(self, count: int) -> None:
        """Count ranges of a set, beyond its first.

        Raises:
            FormatError: they are too many.
        """
        self._ranges += count
        if self._ranges > self._MAX_RANGES:
            raise FormatError(f"the regular expression is too large: over {self._MAX_RANGES} ranges of characters")

    def with_cases(self, ranges: Ranges, *, wide: bool) -> Ranges:
        """See `with_cases`.

        Raises:
            FormatError: there are too many characters.
        """
        key = (tuple(ranges), wide)
        if key not in self._known:
            self._cased += sum(_looked_at(*one) for one in ranges)
            if self._cased > self._MAX_CASED:
                raise FormatError(
                    f"the regular expression is too large: over {self._MAX_CASED} characters in sets with the flag 'i'"
                )
            self._known[key] = with_cases(ranges, wide=wide)
        return self._known[key]


def parse(pattern: str, flags: str = "", characters: Characters | None = None) -> Node:
    """A regular expression that the whole text matches, as a part of a grammar.

    Args:
        pattern: the expression.
        flags: letters of flags, of which there are `i`, `s` and, without effect, `u` and `m`.
        characters: count of those of the grammar around it; None if it stands alone.

    Raises:
        FormatError: it is none, is too large, or has what is refused here.
    """
    return _Parser(pattern, flags, characters or Characters()).parse()


class _Parser:
    def __init__(self, pattern: str, flags: str, characters: Characters) -> None:
        self._text = pattern
        self._at = 0
        self._characters = characters
        self._flags = self._checked_flags(flags)

    def parse(self) -> Node:
        if self._text.startswith("^"):
            self._at = 1
        node = self._choice(0)
        if self._at < len(self._text):
            raise self._error("unmatched ')'")
        return node

    def _error(self, what: str) -> FormatError:
        return FormatError(f"bad regular expression: {what} at position {self._at}")

    def _refused(self, what: str) -> FormatError:
        return FormatError(f"regular expressions with {what} (position {self._at}) are not supported")

    def _checked_flags(self, flags: str) -> frozenset[str]:
        for flag in flags:
            if flag not in "isum":
                raise FormatError(f"regular expressions with the flag {flag!r} are not supported")
        return frozenset(flags)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise FormatError("the regular expression is nested too deeply")
        outer = self._flags
        parts = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence(depth))
        self._flags = outer
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts), choice=True)

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        text: list[str] = []
        while (char := self._peek()) not in ("", "|", ")"):
            if char == "$" and self._at == len(self._text) - 1 and depth == 0:
                self._at += 1
                break
            node = self._item(char, depth)
            if node is None:
                continue
            counted = self._counted(node)
            if isinstance(counted, Literal):
                text.append(counted.text)
                continue
            parts += [Literal("".join(text))] if text else []
            parts.append(counted)
            text = []
        parts += [Literal("".join(text))] if text else []
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _item(self, char: str, depth: int) -> Node | None:
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._set()
        if char in "^$":
            raise self._refused("anchors within the text")
        if _COUNT.match(self._text, self._at):
            raise self._error(f"nothing to repeat before {char!r}")
        if char == ".":
            self._at += 1
            return CharSet(((0, LAST),), negated=False) if "s" in self._flags else CharSet(((10, 10),), negated=True)
        found = self._member(in_set=False)
        if isinstance(found, str):
            return self._made(self._class(found, negated=False), negated=False)
        return self._made([(found, found)], negated=False)

    def _group(self, depth: int) -> Node | None:
        opened = _GROUP.match(self._text, self._at)
        if opened is None:
            raise self._refused("lookarounds and other special groups")
        outer = self._flags
        on, off, end = opened.groups()
        self._flags = (self._flags | self._checked_flags(on or "")) - frozenset(off or "")
        self._at = opened.end()
        if end == ")":
            return None  # until the group around it ends
        node = self._choice(depth + 1)
        if self._peek() != ")":
            raise self._error("missing ')'")
        self._at += 1
        self._flags = outer
        return node

    def _counted(self, node: Node) -> Node:
        found = _COUNT.match(self._text, self._at)
        if found is None:
            return node
        self._at = found.end()
        least, comma, most, only_most = found.groups()
        sign = found[0]
        if sign in "*+?":
            low, high = int(sign == "+"), 1 if sign == "?" else None
        elif only_most is not None:
            low, high = 0, int(only_most)
        else:
            low, high = int(least), int(most) if most else None if comma else int(least)
        if max(low, high or 0) > _MAX_COUNT:
            raise FormatError(f"the regular expression is too large: a part is repeated over {_MAX_COUNT} times")
        if high is not None and high < low:
            raise self._error("a repetition whose end comes before its beginning")
        if self._peek() == "?":
            self._at += 1  # lazy: the same texts
        elif self._peek() == "+":
            raise self._refused("possessive quantifiers")
        if _COUNT.match(self._text, self._at):
            raise self._error("multiple repeat")
        return Literal("") if high == 0 else Repeat(node, low, high)

    def _set(self) -> Node:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        if self._peek() == "]":
            raise self._refused("sets that are empty or begin with ']'")
        ranges: Ranges = []
        classes: set[str] = set()
        while self._peek() != "]":
            if not self._peek():
                raise self._error("missing ']'")
            if self._peek() == "[" or self._text[self._at : self._at + 2] in ("&&", "--", "~~"):
                raise self._refused("sets within sets (write '\\[' for a bracket)")
            first = last = self._member(in_set=True)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member(in_set=True)
                if isinstance(first, str) or isinstance(last, str) or last < first:
                    raise self._error("bad range in a set")
            if isinstance(first, str):
                ranges += [] if first in classes else self._class(first, negated=negated)
                classes.add(first)
            elif isinstance(last, int):
                ranges.append((first, last))
        self._at += 1
        return self._made(ranges, negated=negated)

    def _made(self, ranges: Ranges, *, negated: bool) -> Node:
        if "i" in self._flags:
            ranges = self._characters.with_cases(ranges, wide=negated)
        ranges = merged(ranges)
        self._characters.add_ranges(max(0, len(ranges) - 1))
        if not (complement(ranges) if negated else ranges):
            raise self._error("a set that nothing matches")
        if not negated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return Literal(chr(ranges[0][0]))
        return CharSet(tuple(ranges), negated)

    def _class(self, letter: str, *, negated: bool) -> Ranges:
        lower = letter.lower()
        if negated == (letter == lower):
            return _wide(lower) if letter == lower else complement(_wide(lower))
        return _ASCII[lower] if letter == lower else complement(_ASCII[lower])

    def _member(self, *, in_set: bool) -> int | str:
        """A character, or the letter of a class such as `\\d`."""
        char = self._peek()
        self._at += 1
        if char != "\\":
            return self._point(char)
        char = self._peek()
        if not char:
            raise self._error("a backslash at the end")
        if char in "dwsDWS":
            self._at += 1
            return char
        if char in "bB" or char in "pP":
            if in_set and char == "b":
                self._at += 1
                return 0x08
            raise self._refused("word boundaries" if char in "bB" else "Unicode properties")
        code = _HEX.match(self._text, self._at)
        if code is not None:
            self._at = code.end()
            point = int(next(filter(None, code.groups())), 16)
            if point > LAST or 0xD800 <= point <= 0xDFFF:
                raise self._error("an escape that is no character")
            return point
        self._at += 1
        if char in _CONTROL:
            return _CONTROL[char]
        if char.isalnum():
            raise self._error(f"unknown escape \\{char}")
        return self._point(char)

    def _point(self, char: str) -> int:
        if "\ud800" <= char <= "\udfff":
            raise self._error("half a surrogate pair")
        return ord(char)


def merged(ranges: Ranges) -> Ranges:
    """The same characters as ranges in order that do not touch."""
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    found: Ranges = []
    after = 0
    # Surrogates are no characters.
    for first, last in merged([*ranges, (0xD800, 0xDFFF)]):
        if first > after:
            found.append((after, first - 1))
        after = last + 1
    return [*found, (after, LAST)] if after <= LAST else found


def _looked_at(first: int, last: int) -> int:
    """Number of the characters of a range, from its first one on, whose other cases are looked for."""
    # So large a range has both cases of what is beyond.
    return last - first + 1 if last - first <= _MAX_COUNT else min(last - first, 0x24F) + 1


def with_cases(ranges: Ranges, *, wide: bool) -> Ranges:
    """The characters with their other cases: those that every dialect counts in, or that any does.

    Args:
        ranges: the characters.
        wide: whether to add all that Unicode folds to the same ASCII letter.
    """
    found = list(ranges)
    for first, last in ranges:
        for point in range(first, first + _looked_at(first, last)):
            for other in (chr(point).lower(), chr(point).upper()):
                if len(other) == 1 and (wide or other.isascii() == (point < 0x80)):
                    found.append((ord(other), ord(other)))
            if wide and chr(point).lower() in _FOLDED:
                found.append((_FOLDED[chr(point).lower()],) * 2)
    return found


@lru_cache(maxsize=3)
def _wide(letter: str) -> Ranges:
    """What any dialect counts in."""

    def counts(point: int) -> bool:
        kind = unicodedata.category(chr(point))
        if letter == "d":
            return kind == "Nd"
        if letter == "s":
            return kind[0] == "Z" or 0x09 <= point <= 0x0D or point in _SPACES
        return kind[0] in "LNM" or kind in ("Pc", "Cn") or point in (0x200C, 0x200D)

    found: Ranges = []
    for point in range(LAST + 1):
        if counts(point):
            if found and found[-1][1] == point - 1:
                found[-1] = (found[-1][0], point)
            else:
                found.append((point, point))
    return found
