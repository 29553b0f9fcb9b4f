r"""Regular expressions of clients, in the dialects of Python, ECMAScript and Rust, rewritten for llguidance (Rust's).

Where dialects differ the narrowest meaning is taken: `\d` is 0-9, `\w` is [0-9A-Za-z_], `\s` is ASCII white space,
`.` matches no line end; and what is *not* one of these is what no dialect counts in. So whatever is generated matches
in each. Lazy quantifiers match the same texts as greedy ones. What is no regular expression proper, or means something
else from dialect to dialect, is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from openai_bls.output.structured.errors import FormatError

_MAX_LENGTH = 32_768
_MAX_DEPTH = 40
# States of the automaton, with counted repetitions written out.
_MAX_STATES = 20_000
# Ranges of characters of all sets together: a set of letters of all scripts has some hundreds.
_MAX_RANGES = 20_000
_RANGES_OF_A_WIDE_CLASS = 700

_TOKEN = re.compile(
    r"(?P<anchor>\^|\$|\\[AZz])|(?P<open>\((?:\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>))?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<count>[*+?]|\{\d{1,7}(?:,\d{0,7})?\}|\{,\d{1,7}\})|(?P<set>\[)|(?P<dot>\.)|(?P<escape>\\)|(?P<char>.)",
    re.DOTALL,
)
_COUNT = re.compile(_TOKEN.pattern.split("(?P<count>")[1].split(")|(?P<set>")[0])
_REFUSED_GROUPS = (
    *(("(?=", "lookaheads"), ("(?!", "lookaheads"), ("(?<=", "lookbehinds"), ("(?<!", "lookbehinds")),
    *(("(?P=", "back references"), ("(?>", "atomic groups"), ("(?#", "comments")),
    ("(?", "inline flags and other special groups"),
)
_CONTROL = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0, "a": 0x07}
_HEX = {
    "x": re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}"),
    "u": re.compile(r"u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}"),
    "U": re.compile(r"U([0-9A-Fa-f]{8})|U\{([0-9A-Fa-f]{1,6})\}"),
}
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
# What each class stands for in every dialect, and what it stands for in any; in Rust's syntax, within a set.
_COMMON = {"d": "0-9", "w": "0-9A-Z_a-z", "s": r"\x09-\x0d\x20"}
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}_",
    "s": r"\x09-\x0d\x1c-\x20\u{85}\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}",
}
_ANY_BUT_LINE_ENDS = r"[^\n\r\u{2028}\u{2029}]"
SPLIT_ESCAPE = re.compile("[\x80-\xff][0-9A-Fa-f]")
"""Characters that xgrammar misreads: it prints the first as `\\xHH` and reads that again with the digit."""


@lru_cache(maxsize=64)
def full(pattern: str) -> str:
    """An expression that the whole text must match, without anchors.

    Raises:
        FormatError: it is no regular expression, is too large, or uses what is refused here.
    """
    return _Translator(pattern, anchors=False).translated()


def search(pattern: str) -> str:
    """An expression that is to be found somewhere in a text (JSON schema's rule). Raises as `full` does."""
    return _Translator(pattern, anchors=True).translated()


def for_xgrammar(pattern: str, max_states: int, max_skipped: int) -> str:
    """An expression that the whole text must match, in the subset that all versions of xgrammar read alike.

    Args:
        pattern: accepted by `full`.
        max_states: states of the automaton.
        max_skipped: optional parts.

    Raises:
        FormatError: xgrammar would misread it or take too long.
    """
    translator = _Translator(pattern, anchors=False, xgrammar=True)
    found = translator.translated()
    whole = translator.whole
    if whole.states > max_states or whole.skipped > max_skipped:
        raise FormatError(
            f"regular expressions of over {max_states} states, or with over {max_skipped} parts that may be left out, "
            "are not supported by this server's engine"
        )
    if SPLIT_ESCAPE.search(found):
        raise FormatError(
            "regular expressions with a hexadecimal digit behind a character of U+0080 to U+00FF cannot be enforced by "
            "this server's engine"
        )
    return found


def literal(text: str) -> str:
    """A text as an expression."""
    return "".join(character(ord(char)) for char in text)


def character(point: int, special: str = r"\.+*?()|[]{}^$-&~#") -> str:
    """One character, in a set or outside; those of `special` get a backslash."""
    text = chr(point)
    if text in special:
        return "\\" + text
    return f"\\x{point:02x}" if point < 0x20 or point == 0x7F else text


def charset(ranges: list[tuple[int, int]], *, negated: bool = False, write: Callable[[int], str] = character) -> str:
    """A set of characters, of inclusive ranges of code points, each character written by `write`."""
    parts = (write(first) + (f"-{write(last)}" if last > first else "") for first, last in ranges)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


class _Group:
    """A group being read, or the whole expression."""

    def __init__(self, *, at_start: bool) -> None:
        self.opened_at_start = self.at_start = at_start
        self.closed = False
        """`$` was read in this branch: nothing may follow."""
        self.ended = False
        """`$` was read in any branch."""
        self.anchored = False
        self.states = 1
        self.item = 0
        """States of the item that a quantifier would repeat; 0 if there is none."""
        self.item_anchored = False
        self.skipped = 0
        """Parts that may be left out, counted where they are repeated."""
        self.empty = True
        """True if this branch may be empty so far."""
        self.any_empty = False
        """True if a branch before it may be empty."""
        self.item_skipped = 0
        self.item_empty = False
        self.before_item = True
        """Value of `empty` without the item."""

    def leave_branch(self) -> None:
        self.any_empty |= self.empty


class _Translator:
    def __init__(self, pattern: str, *, anchors: bool, xgrammar: bool = False) -> None:
        if len(pattern) > _MAX_LENGTH:
            raise FormatError(f"the regular expression is longer than {_MAX_LENGTH} characters")
        self._pattern = pattern
        self._anchors = anchors
        self._xgrammar = xgrammar
        self._at = 0
        self._ranges = 0
        self._out: list[str] = []
        self.whole = _Group(at_start=True)
        self._groups = [self.whole]

    def translated(self) -> str:
        while self._at < len(self._pattern):
            token = _TOKEN.match(self._pattern, self._at)
            assert token is not None
            kind = str(token.lastgroup)
            if kind == "count" and token[0][0] == "{" and not self._groups[-1].item:
                kind = "char"
            getattr(self, f"_{kind}")(token[0])
        if len(self._groups) > 1:
            raise self._error("missing ')'")
        self._check_states()
        return "".join(self._out)

    def _error(self, what: str) -> FormatError:
        return FormatError(f"bad regular expression: {what} at position {self._at}")

    def _refused(self, what: str) -> FormatError:
        return FormatError(f"regular expressions with {what} (position {self._at}) are not supported")

    def _check_states(self) -> None:
        if self._groups[-1].states > _MAX_STATES:
            raise FormatError(f"the regular expression is too large: over {_MAX_STATES} states")

    def _item(self, text: str, states: int = 1, skipped: int = 0, empty: bool = False) -> None:
        group = self._groups[-1]
        if group.closed:
            raise FormatError("'$' can stand only where the text ends")
        group.at_start = False
        group.item, group.item_anchored = states, False
        group.states += states
        group.item_skipped, group.item_empty, group.before_item = skipped, empty, group.empty
        group.skipped += skipped
        group.empty &= empty
        self._check_states()
        self._out.append(text)

    def _character(self, point: int) -> str:
        return character(point, r"\.+*?()|[]{}^$-") if self._xgrammar else character(point)

    def _char(self, text: str) -> None:
        self._at += 1
        self._item(self._character(self._point(text[0])))

    def _dot(self, _: str) -> None:
        self._at += 1
        self._item(r"[^\n\r]" if self._xgrammar else _ANY_BUT_LINE_ENDS)

    def _anchor(self, text: str) -> None:
        self._at += len(text)
        group = self._groups[-1]
        group.item, group.anchored = 0, True
        if text in ("^", r"\A"):
            if not group.at_start:
                raise FormatError("'^' can stand only where the text begins")
            self._out.append("^" if self._anchors else "")
        else:
            group.closed = group.ended = True
            self._out.append("$" if self._anchors else "")

    def _bar(self, text: str) -> None:
        self._at += 1
        group = self._groups[-1]
        group.at_start, group.closed, group.item = group.opened_at_start, False, 0
        group.leave_branch()
        group.empty = True
        group.states += 1
        self._check_states()
        self._out.append(text)

    def _open(self, text: str) -> None:
        if text == "(" and self._pattern.startswith("(?", self._at):
            raise self._refused(
                next(name for sign, name in _REFUSED_GROUPS if self._pattern.startswith(sign, self._at))
            )
        self._at += len(text)
        if self._groups[-1].closed:
            raise FormatError("'$' can stand only where the text ends")
        if len(self._groups) > _MAX_DEPTH:
            raise FormatError("the regular expression is nested too deeply")
        self._groups.append(_Group(at_start=self._groups[-1].at_start))
        self._out.append("(?:")

    def _close(self, _: str) -> None:
        if len(self._groups) == 1:
            raise self._error("unmatched ')'")
        self._at += 1
        inner = self._groups.pop()
        inner.leave_branch()
        self._item(")", inner.states, inner.skipped, inner.any_empty)
        group = self._groups[-1]
        group.item_anchored = inner.anchored
        group.anchored |= inner.anchored
        group.closed = inner.ended
        group.ended |= inner.ended

    def _count(self, text: str) -> None:
        group = self._groups[-1]
        if not group.item:
            raise self._error(f"nothing to repeat before {text!r}")
        self._at += len(text)
        least, comma, most = ("1" if text == "+" else "0", "", "1" if text == "?" else "")
        if text[0] == "{":
            least, comma, most = text[1:-1].partition(",")
            if most and int(most) < int(least or 0):
                raise self._error("a repetition whose end comes before its beginning")
            text = f"{{{least or 0}{comma}{most}}}"
        times = max(int(most or 0), int(least or 0), 1)
        group.states += group.item * (times - 1)
        self._check_states()
        if self._xgrammar and group.item_empty and text != "?":
            raise self._refused("a repeated part that may be empty")
        optional = not int(least or 0)
        group.skipped += group.item_skipped * (times - 1) + optional
        group.empty = group.before_item and (group.item_empty or optional)
        following = self._pattern[self._at : self._at + 1]
        if following == "?":
            self._at += 1  # lazy: the same texts
        elif following == "+":
            raise self._refused("possessive quantifiers")
        if _COUNT.match(self._pattern, self._at):
            raise self._error("multiple repeat")
        if group.item_anchored:
            raise self._refused("anchors under a quantifier")
        group.item = 0
        self._out.append(text)

    def _escape(self, _: str) -> None:
        self._at += 1
        letter = self._pattern[self._at : self._at + 1]
        if letter and letter in "bB":
            raise self._refused("word boundaries")
        if letter and letter in "dwsDWS":
            self._at += 1
            self._item(f"[{self._class(letter, negated=False)}]")
        else:
            self._item(self._character(self._escaped_point()))

    def _class(self, letter: str, *, negated: bool) -> str:
        """A class within a set, `negated` or not."""
        lower = letter.lower()
        wide = negated == (letter == lower)
        if wide and self._xgrammar:
            raise self._refused(f"\\{letter} or its like, which leave out some characters beyond ASCII,")
        self._count_ranges(_RANGES_OF_A_WIDE_CLASS if wide else 3)
        found = (_WIDE if wide else _COMMON)[lower]
        return found if letter == lower else f"[^{found}]"

    def _count_ranges(self, count: int) -> None:
        self._ranges += count
        if self._ranges > _MAX_RANGES:
            raise FormatError(
                f"the regular expression is too large: its sets have over {_MAX_RANGES} ranges of characters, "
                r"of which \W, \D, \S and their like in a negated set have hundreds each"
            )

    def _point(self, char: str) -> int:
        if "\ud800" <= char <= "\udfff":
            raise self._error("half a surrogate pair")
        return ord(char)

    def _escaped_point(self) -> int:
        """The character of an escape whose backslash has been read."""
        char = self._pattern[self._at : self._at + 1]
        if not char:
            raise self._error("a backslash at the end")
        if char in "pP":
            raise self._refused("Unicode properties")
        if char in "123456789k":
            raise self._refused("back references")
        if char in _HEX:
            match = _HEX[char].match(self._pattern, self._at)
            if match is None:
                raise self._error(f"bad escape \\{char}")
            self._at = match.end()
            point = int(match[1] or match[2], 16)
            if 0xD800 <= point <= 0xDBFF and (low := _LOW_SURROGATE.match(self._pattern, self._at)):
                self._at = low.end()
                return 0x10000 + ((point - 0xD800) << 10) + int(low[1], 16) - 0xDC00
            if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                raise self._error("an escape that is no character")
            return point
        self._at += 1
        if char in _CONTROL:
            return _CONTROL[char]
        following = self._pattern[self._at : self._at + 1]
        if char == "c" and following.isascii() and following.isalpha():
            self._at += 1
            return ord(following) % 32
        if char.isalnum():
            raise self._error(f"unknown escape \\{char}")
        return self._point(char)

    def _set(self, _: str) -> None:
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        if self._pattern.startswith("]", self._at):
            raise self._refused("sets that are empty or begin with ']'")
        ranges: list[tuple[int, int]] = []
        classes: dict[str, str] = {}
        while not self._pattern.startswith("]", self._at):
            if self._pattern.startswith("[:", self._at):
                raise self._refused("POSIX character classes")
            first = last = self._member()
            if self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at):
                self._at += 1
                last = self._member()
                if isinstance(first, str) or isinstance(last, str) or last < first:
                    raise self._error("bad range in a set")
            if isinstance(first, str):
                classes[first] = classes.get(first) or self._class(first, negated=negated)
            elif isinstance(last, int):
                ranges.append((first, last))
        self._at += 1
        if negated and any(letter.lower() in classes and letter.upper() in classes for letter in "dws"):
            raise self._error("a set that nothing matches")
        self._count_ranges(len(ranges))
        if self._xgrammar and any(last > 0x7F for _, last in ranges):
            raise self._refused("sets of characters beyond ASCII")
        self._item(charset(ranges, negated=negated, write=self._character)[:-1] + "".join(classes.values()) + "]")

    def _member(self) -> int | str:
        """A character, or the letter of a class such as `\\d`."""
        if self._at + 1 >= len(self._pattern):
            raise self._error("missing ']'")
        char = self._pattern[self._at]
        self._at += 1
        if char != "\\":
            return self._point(char)
        following = self._pattern[self._at]
        if following == "b" or following in "dwsDWS":
            self._at += 1
            return 0x08 if following == "b" else following
        return self._escaped_point()
