r"""Regular expressions, brought to the plain form that both grammar libraries read alike.

Clients write them for Python, ECMAScript (JSON schema's `pattern`) or Rust, whose dialects differ in what `.`, `\d`,
`\w` and `\s` stand for. Here these mean what they mean to all: `\d` is an ASCII digit, `\w` an ASCII word character,
`\s` ASCII white space, and their opposites leave out whatever one of the dialects counts in. So whatever is generated
matches in each.

Lazy quantifiers match the same texts as greedy ones. What is no regular expression proper, or means something else
from dialect to dialect, is refused by name: lookarounds, back references, word boundaries, inline flags, atomic groups,
possessive quantifiers, Unicode properties.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from typing import NamedTuple

from openai_bls.output.structured import charsets, skips
from openai_bls.output.structured.charsets import CLASSES, Ranges, common, complement, normal, wide, written
from openai_bls.output.structured.errors import FormatError
from openai_bls.output.structured.pattern_tree import Item, Tree
from openai_bls.output.structured.skips import Skips

_MAX_LENGTH = 32_768
_MAX_DEPTH = 40
# Of the automaton, with counted repetitions written out.
_MAX_STATES = 20_000
# Of all sets together: `\W` has some 770, as it leaves out the letters of all scripts.
_MAX_RANGES = 20_000
# Of the plain form, which spells out what `.` and `\W` stand for.
_MAX_PLAIN = 131_072

_QUANTIFIER = re.compile(r"\{(\d{1,7})?(?:(,)(\d{1,7})?)?\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")
_REFUSED_GROUPS = (
    ("?=", "lookaheads"),
    ("?!", "lookaheads"),
    ("?<=", "lookbehinds"),
    ("?<!", "lookbehinds"),
    ("?P=", "back references"),
    ("?>", "atomic groups"),
    ("?#", "comments"),
    ("?", "inline flags and other special groups"),
)
_CONTROL = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0, "a": 0x07}
_HEX = {
    "x": re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}"),
    "u": re.compile(r"u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}"),
    "U": re.compile(r"U([0-9A-Fa-f]{8})|U\{([0-9A-Fa-f]{1,6})\}"),
}
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_ANY_BUT_LINE_ENDS = written(complement(charsets.LINE_ENDS))


class Plain(NamedTuple):
    """A regular expression in plain form."""

    pattern: str
    states: int
    """About how many its automaton has, with counted repetitions written out."""
    skips: Skips


def full(pattern: str) -> Plain:
    """The plain form of an expression that the whole text must match.

    Raises:
        FormatError: it is no regular expression, or uses what this module refuses.
    """
    tree = _Parser(pattern).parse()
    return Plain(_bounded(tree.rendered("anchored", "anchored")), tree.size, tree.skips)


def search(pattern: str) -> str:
    """The plain form, for the whole text, of an expression that is to be found somewhere in it (JSON schema's rule).

    Raises:
        FormatError: as for `full`.
    """
    tree = _Parser(pattern).parse()
    return _bounded(tree.rendered("open", "open"))


def _bounded(plain: str) -> str:
    if len(plain) > _MAX_PLAIN:
        raise FormatError(
            f"the regular expression is too large: over {_MAX_PLAIN} characters with its sets spelled out"
        )
    return plain


class _Parser:
    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MAX_LENGTH:
            raise FormatError(f"the regular expression is longer than {_MAX_LENGTH} characters")
        self._pattern = pattern
        self._at = 0
        self._ranges = 0

    def parse(self) -> Tree:
        tree = self._alternatives(0)
        if self._at < len(self._pattern):
            raise self._error("unmatched ')'")
        if tree.size > _MAX_STATES:
            raise FormatError(f"the regular expression is too large: over {_MAX_STATES} states")
        return tree

    def _error(self, what: str) -> FormatError:
        return FormatError(f"bad regular expression: {what} at position {self._at}")

    def _refused(self, what: str) -> FormatError:
        return FormatError(f"regular expressions with {what} (position {self._at}) are not supported")

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _alternatives(self, depth: int) -> Tree:
        if depth > _MAX_DEPTH:
            raise FormatError("the regular expression is nested too deeply")
        tree = Tree([[]])
        while self._at < len(self._pattern) and not self._peek(")"):
            if self._peek("|"):
                self._at += 1
                tree.branches.append([])
            else:
                tree.branches[-1].append(self._quantified(self._item(depth)))
        return tree

    def _item(self, depth: int) -> Item:
        char = self._pattern[self._at]
        if char in "*+?":
            raise self._error(f"nothing to repeat before {char!r}")
        if char == "(":
            return self._group(depth)
        if char == "[":
            return Item(self._written(self._set()))
        if char == "\\":
            return self._escape()
        self._at += 1
        if char in "^$":
            return Item(anchor=char, size=0, skips=skips.NOTHING)
        if char == ".":
            return Item(_ANY_BUT_LINE_ENDS)
        return Item(charsets.char(self._point(char)))

    def _point(self, char: str) -> int:
        point = ord(char)
        if 0xD800 <= point <= 0xDFFF:
            raise self._error("half a surrogate pair")
        return point

    def _group(self, depth: int) -> Item:
        self._at += 1
        if self._peek("?"):
            match = _GROUP.match(self._pattern, self._at)
            if match is None:
                raise self._refused(next(name for sign, name in _REFUSED_GROUPS if self._peek(sign)))
            self._at = match.end()
        tree = self._alternatives(depth + 1)
        if not self._peek(")"):
            raise self._error("missing ')'")
        self._at += 1
        return Item(group=tree, size=tree.size, skips=tree.skips)

    def _quantified(self, item: Item) -> Item:
        if self._at >= len(self._pattern):
            return item
        char = self._pattern[self._at]
        least, most, sign = 0, 0, ""
        if char in "*+?":
            self._at += 1
            least, most, sign = (1 if char == "+" else 0), 1, char
        elif char == "{":
            match = _QUANTIFIER.match(self._pattern, self._at)
            if match is None or match[0] in ("{}", "{,}"):
                return item
            least = int(match[1] or 0)
            most = int(match[3]) if match[3] else least
            if match[3] and most < least:
                raise self._error("a repetition whose end comes before its beginning")
            self._at = match.end()
            sign = f"{{{least}{',' if match[2] else ''}{match[3] or ''}}}"
        if not sign:
            return item
        if self._peek("?"):
            self._at += 1  # lazy: the same texts
        elif self._peek("+"):
            raise self._refused("possessive quantifiers")
        if self._at < len(self._pattern) and (
            self._pattern[self._at] in "*+?" or _QUANTIFIER.match(self._pattern, self._at)
        ):
            raise self._error("multiple repeat")
        if item.anchored():
            raise self._refused("anchors under a quantifier")
        text = item.text if item.group is None else f"(?:{item.group.rendered('inside', 'inside')})"
        endless = sign in ("*", "+") or sign.endswith(",}")
        again = skips.repeated(item.skips, least, None if endless else most)
        return Item(text + sign, size=item.size * max(most, 1), skips=again)

    def _escape(self) -> Item:
        self._at += 1
        if self._at >= len(self._pattern):
            raise self._error("a backslash at the end")
        char = self._pattern[self._at]
        if char in "bB":
            raise self._refused("word boundaries")
        if char in "AZz":
            self._at += 1
            return Item(anchor="^" if char == "A" else "$", size=0, skips=skips.NOTHING)
        if char in CLASSES:
            return Item(self._written(common(self._class_letter())))
        return Item(charsets.char(self._escaped_point()))

    def _written(self, ranges: Ranges) -> str:
        self._count(ranges)
        return written(ranges)

    def _count(self, ranges: Sized) -> None:
        self._ranges += len(ranges)
        if self._ranges > _MAX_RANGES:
            raise FormatError(
                f"the regular expression is too large: its sets have over {_MAX_RANGES} ranges of characters, "
                r"of which \W, \D, \S and their like in a negated set have up to hundreds each"
            )

    def _class_letter(self) -> str:
        """The letter of the class escape at hand; the backslash is read already."""
        self._at += 1
        return self._pattern[self._at - 1]

    def _escaped_point(self) -> int:
        """The character that the escape at hand stands for; the backslash is read already."""
        char = self._pattern[self._at]
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
            return ord(self._pattern[self._at - 1]) % 32
        if char.isalnum():
            raise self._error(f"unknown escape \\{char}")
        return self._point(char)

    def _set(self) -> Ranges:
        self._at += 1
        negated = self._peek("^")
        self._at += negated
        if self._peek("]"):
            raise self._refused("sets that are empty or begin with ']'")
        ranges: list[tuple[int, int]] = []
        classes: set[str] = set()
        while not self._peek("]"):
            if self._at >= len(self._pattern):
                raise self._error("missing ']'")
            if self._peek("[:"):
                raise self._refused("POSIX character classes")
            first = last = self._member()
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                last = self._member()
                if isinstance(first, str) or isinstance(last, str) or last < first:
                    raise self._error("bad range in a set")
            if isinstance(first, str) or isinstance(last, str):
                classes.add(str(first))
            else:
                ranges.append((first, last))
        self._at += 1
        for letter in sorted(classes):
            ranges += wide(letter) if negated else common(letter)
        self._count(ranges)
        found = normal(ranges)
        if negated:
            found = complement(found)
        if not found:
            raise self._error("a set that nothing matches")
        return found

    def _member(self) -> int | str:
        """A character, or the letter of a class such as `\\d`."""
        if self._at + 1 >= len(self._pattern):
            raise self._error("missing ']'")
        char = self._pattern[self._at]
        self._at += 1
        if char != "\\":
            return self._point(char)
        following = self._pattern[self._at]
        if following == "b":
            self._at += 1
            return 0x08
        return self._class_letter() if following in CLASSES else self._escaped_point()
